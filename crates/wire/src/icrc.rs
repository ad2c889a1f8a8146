//! The invariant CRC: full, incremental, and found again when the sender's IP id is unknown (roce.md section 2).
