//! The fenced blocks of a page of docs/, for tests that do what the page says.

/// A fenced block of a page.
pub(crate) struct Block {
    /// Info string: the words after the opening fence.
    pub(crate) info: String,
    pub(crate) text: String,
}

/// Returns the fenced blocks of a page, in order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let parts: Vec<&str> = page.split("\n```").skip(1).collect();
    let block = |part: &&str| {
        let (info, text) = part.split_once('\n').expect("a line of a block");
        Block { info: info.to_owned(), text: format!("{text}\n") }
    };
    parts.iter().step_by(2).map(block).collect()
}
