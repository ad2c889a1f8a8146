//! The farmem command.
fn main() {}
