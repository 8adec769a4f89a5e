use super::*;
use bytes::BytesMut;
use lazaret_api::guest::ExecEnd;
use proptest::prelude::*;

fn exit() -> ExecExit {
    ExecExit {
        end: ExecEnd::Exited,
        code: Some(0),
        signal: None,
        message: None,
        duration_ms: 1,
        egress_seq: None,
    }
}

/// Reads from an offset to the end.
async fn read_all(recording: &Recording, mut offset: u64) -> Vec<Frame> {
    let end = recording.progress().borrow().len;
    let mut bytes = BytesMut::new();
    while let Some((chunk, next)) = recording.read_at(offset, end).await.unwrap() {
        bytes.extend_from_slice(&chunk);
        assert!(next > offset);
        offset = next;
    }
    let mut frames = Vec::new();
    while let Some(frame) = Frame::decode(&mut bytes).unwrap() {
        frames.push(frame);
    }
    assert!(bytes.is_empty(), "the stream ends between two frames");
    frames
}

fn stdout(frames: &[Frame]) -> Vec<u8> {
    let parts = frames.iter().filter_map(|frame| {
        if let Frame::Stdout(bytes) = frame {
            Some(bytes.to_vec())
        } else {
            None
        }
    });
    parts.flatten().collect()
}

#[tokio::test]
async fn what_fits_is_kept_whole_and_ends_with_the_exit() {
    let dir = tempfile::tempdir().unwrap();
    let recording = Arc::new(Recording::new(dir.path().to_owned()));
    let mut recorder = Recorder::new(Arc::clone(&recording), 1 << 20);
    recorder
        .output(Frame::Stdout("hello ".into()))
        .await
        .unwrap();
    recorder.output(Frame::Stderr("oops".into())).await.unwrap();
    recorder
        .output(Frame::Stdout("world".into()))
        .await
        .unwrap();
    recorder.finish(&exit()).await.unwrap();
    let frames = read_all(&recording, 0).await;
    assert_eq!(stdout(&frames), b"hello world");
    assert_eq!(frames[1], Frame::Stderr("oops".into()));
    assert!(matches!(frames.last(), Some(Frame::Exit(_))));
    assert!(recording.progress().borrow().finished);
}

#[tokio::test]
async fn of_a_flood_the_first_and_the_latest_part_are_kept_and_the_disk_stays_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let cap = 64 << 10;
    let recording = Arc::new(Recording::new(dir.path().to_owned()));
    let mut recorder = Recorder::new(Arc::clone(&recording), cap);
    recorder
        .output(Frame::Stdout("first".into()))
        .await
        .unwrap();
    for _ in 0..40 {
        recorder
            .output(Frame::Stdout(vec![b'x'; 30_000].into()))
            .await
            .unwrap();
        let on_disk: u64 = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .sum();
        assert!(on_disk <= cap, "{on_disk} bytes on disk");
    }
    recorder.output(Frame::Stdout("last".into())).await.unwrap();
    recorder.finish(&exit()).await.unwrap();
    for reader in [
        &*recording,
        &Recording::left_in(dir.path().to_owned()).unwrap(),
    ] {
        let frames = read_all(reader, 0).await;
        let text = stdout(&frames);
        assert!(text.starts_with(b"first") && text.ends_with(b"last"));
        let gaps: Vec<Gap> = frames
            .iter()
            .filter_map(|f| {
                if let Frame::Gap(p) = f {
                    serde_json::from_slice(p).ok()
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(gaps.len(), 1);
        assert!(gaps[0].dropped > 0 && gaps[0].resume_at > gaps[0].dropped);
        assert!(matches!(frames.last(), Some(Frame::Exit(_))));
    }
}

proptest! {
    #[test]
    fn the_index_never_overlaps_and_always_keeps_the_newest_frame(
        lengths in prop::collection::vec(9_u64..120, 1..300),
    ) {
        let mut index = Index::default();
        let mut total = 0;
        for length in lengths {
            let place = index.place(length, 4096);
            prop_assert!(!place.dropped.contains(&0));
            prop_assert!(!place.dropped.contains(&place.part));
            prop_assert_eq!(index.at(total + length, index.len), At::End);
            let newest = matches!(index.at(total, index.len), At::Bytes { part, .. } if part == place.part);
            prop_assert!(newest);
            total += length;
            prop_assert_eq!(index.len, total);
            let kept: u64 = index.parts.iter().map(|(_, len)| len).sum();
            prop_assert!(kept <= 4096);
            for pair in index.parts.iter().zip(index.parts.iter().skip(1)) {
                prop_assert!(pair.0.0 + pair.0.1 <= pair.1.0);
            }
        }
    }
}

/// Output that is dropped while somebody reads it: between two reads anything may go.
#[tokio::test]
async fn a_gap_never_lies_within_a_frame() {
    let dir = tempfile::tempdir().unwrap();
    let recording = Arc::new(Recording::new(dir.path().to_owned()));
    let mut recorder = Recorder::new(Arc::clone(&recording), 4 << 20);
    let (mut offset, mut gaps, mut bytes) = (0, 0, BytesMut::new());
    for turn in 0..200_usize {
        // Frames longer than what is read at once, and shorter ones.
        for size in [300_000, 70_001, 10, 999] {
            let line = vec![u8::try_from(turn % 256).unwrap(); size];
            recorder.output(Frame::Stdout(line.into())).await.unwrap();
        }
        let end = recording.progress().borrow().len;
        let (chunk, next) = recording.read_at(offset, end).await.unwrap().unwrap();
        bytes.extend_from_slice(&chunk);
        offset = next;
        while let Some(frame) = Frame::decode(&mut bytes).unwrap() {
            gaps += u32::from(matches!(frame, Frame::Gap(_)));
        }
        assert!(bytes.is_empty(), "a read ends within a frame");
    }
    assert!(gaps > 1, "nothing was dropped");
}

#[tokio::test]
async fn after_half_a_frame_nothing_is_appended() {
    let dir = tempfile::tempdir().unwrap();
    let recording = Arc::new(Recording::new(dir.path().join("gone")));
    let mut recorder = Recorder::new(Arc::clone(&recording), 1 << 20);
    let lost = recorder.output(Frame::Stdout("hello".into())).await;
    assert!(lost.is_err(), "there is no directory");
    std::fs::create_dir(dir.path().join("gone")).unwrap();
    recorder.finish(&exit()).await.unwrap();
    let progress = *recording.progress().borrow();
    assert!(progress.finished);
    assert_eq!(
        progress.len, 0,
        "readers are told of nothing that is not there"
    );
}
