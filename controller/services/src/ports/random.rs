//! The port to the source of randomness.

/// Gives random bytes that nobody can guess.
pub trait Random: Send + Sync + 'static {
    /// Fills a buffer.
    fn fill(&self, buffer: &mut [u8]);

    /// 64 random bits.
    fn bits(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// The operating system's generator, by way of a generator seeded from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, buffer: &mut [u8]) {
        rand::fill(buffer);
    }
}

/// Bytes that count up, so that a test knows them.
#[cfg(feature = "fakes")]
#[derive(Debug, Default)]
pub struct FakeRandom(std::sync::atomic::AtomicU64);

#[cfg(feature = "fakes")]
impl Random for FakeRandom {
    fn fill(&self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let next = self
                .0
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
                .to_le_bytes();
            let length = chunk.len();
            chunk.copy_from_slice(&next[..length]);
        }
    }
}
