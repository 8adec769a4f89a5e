use super::*;

fn attempt(destination: &str) -> Attempt {
    Attempt {
        kind: "dns".to_owned(),
        destination: destination.to_owned(),
        port: None,
        allowed: false,
        reason: "no rule".to_owned(),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn equal_attempts_are_counted_in_one_record_until_a_minute_is_over() {
    let log = EgressLog::new();
    for second in [0, 1, 59, 60] {
        log.ring()
            .add(at(second), attempt("a.example"), Volume::default());
    }
    let counts: Vec<_> = log
        .after(0)
        .records
        .iter()
        .map(|record| (record.seq, record.count))
        .collect();
    assert_eq!(counts, [(1, 3), (2, 1)]);
    assert_eq!(log.after(1).records.len(), 1);
    assert_eq!(log.after(u64::MAX).records.len(), 0);
}

#[test]
fn a_flood_of_different_attempts_neither_grows_the_log_nor_flushes_it() {
    let log = EgressLog::new();
    log.ring()
        .add(at(0), attempt("first.example"), Volume::default());
    for index in 0..50_000 {
        log.ring().add(
            at(1),
            attempt(&format!("{index}.example")),
            Volume::default(),
        );
    }
    let records = log.after(0).records;
    assert_eq!(records[0].destination, "first.example");
    assert_eq!(records.len(), 201);
    assert_eq!(
        records.iter().map(|record| record.count).sum::<u64>(),
        50_001
    );
}

#[test]
fn the_ring_says_how_many_records_are_gone() {
    let log = EgressLog::new();
    for index in 0..2 * KEPT {
        let minute = i64::try_from(index).unwrap() * 60;
        log.ring().add(
            at(minute),
            attempt(&format!("{index}.example")),
            Volume::default(),
        );
    }
    assert_eq!(log.ring().records.len(), KEPT);
    assert_eq!(log.ring().latest.len(), KEPT);
    let kept = u64::try_from(KEPT).unwrap();
    let answer = log.after(0);
    assert_eq!(
        (answer.dropped, answer.records[0].seq, answer.records.len()),
        (kept, kept + 1, ANSWERED)
    );
    assert_eq!(log.after(2 * kept - 1).records.len(), 1);
    assert_eq!(log.after(2 * kept), EgressRecords::default());
}

#[test]
fn a_reader_who_asks_for_what_is_new_sees_every_attempt() {
    let log = EgressLog::new();
    let (mut after, mut seen, mut bytes) = (0, 0, 0);
    for second in 0..300 {
        for _ in 0..3 {
            let volume = Volume {
                bytes_out: 10,
                ..Volume::default()
            };
            log.ring().add(at(second), attempt("a.example"), volume);
        }
        if second % 2 == 0 {
            for record in log.after(after).records {
                after = record.seq;
                seen += record.count;
                bytes += record.bytes_out;
            }
        }
    }
    for record in log.after(after).records {
        seen += record.count;
        bytes += record.bytes_out;
    }
    assert_eq!((seen, bytes), (900, 9000));
}

#[test]
fn a_reader_does_not_make_a_flood_grow_without_bound() {
    let log = EgressLog::new();
    let (mut after, mut records, mut seen) = (0, 0, 0);
    for _ in 0..100 {
        for index in 0..500 {
            let attempt = attempt(&format!("{index}.example"));
            log.ring().add(at(1), attempt, Volume::default());
        }
        for record in log.after(after).records {
            after = record.seq;
            records += 1;
            seen += record.count;
        }
    }
    assert_eq!(seen, 50_000);
    assert!(records <= MAX_NEW + MAX_MORE + 200, "{records}");
}
