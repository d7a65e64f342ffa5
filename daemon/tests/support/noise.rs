//! Chance that is the same on every run.

/// Bytes from a fixed generator: the same on every run.
#[derive(Debug)]
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        // xorshift64, Marsaglia 2003.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
