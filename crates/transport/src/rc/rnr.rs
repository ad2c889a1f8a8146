//! The time that a requester waits after "receiver not ready".

use farmem_machine::Duration;

/// Waits by timer code in units of 10 microseconds (IBA 9.7.5.2.8, table 45).
const WAITS_10US: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Returns the wait of an RNR NAK's 5-bit timer code (PROTOCOL 4.13).
pub(super) fn wait(code: u8) -> Duration {
    Duration::from_micros(10).times(WAITS_10US[usize::from(code & 0x1f)])
}

#[cfg(test)]
mod tests {
    use super::wait;
    use farmem_machine::Duration;

    /// A receiver chooses a wait by a 5-bit code. The table is not a formula: it starts with its longest
    /// wait, then grows by half and by a third in turn. PROTOCOL 4.13, IBA table 45.
    #[test]
    fn codes_stand_for_the_waits_of_the_table() {
        let ms = |hundredths: u64| Duration::from_micros(hundredths * 10);
        let cases = [
            (0, 65536),
            (1, 1),
            (4, 4),
            (5, 6),
            (9, 24),
            (14, 128),
            (18, 512),
            (22, 2048),
            (26, 8192),
            (31, 49152),
        ];
        for (code, hundredths) in cases {
            assert_eq!(wait(code), ms(hundredths), "code {code}");
        }
        for code in 2..32 {
            assert!(wait(code) > wait(code - 1), "code {code} waits longer than the one before");
        }
        assert_eq!(wait(0x21), wait(1), "only five bits count");
    }
}
