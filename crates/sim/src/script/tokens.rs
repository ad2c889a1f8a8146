//! The words of a command.

use farmem_machine::Duration;

/// A cursor over a command's words; text in quotes is one word.
pub(super) struct Tokens<'a>(Vec<&'a str>);

impl<'a> Tokens<'a> {
    /// Splits the first line of a command.
    pub(super) fn of(command: &'a str) -> Result<Self, String> {
        let line = command.lines().next().unwrap_or("");
        let mut words = Vec::new();
        let mut rest = line.trim_start();
        while !rest.is_empty() {
            let end = match rest.strip_prefix('"') {
                Some(text) => text.find('"').map(|at| at + 2).ok_or("a quote is not closed")?,
                None => rest.find(' ').unwrap_or(rest.len()),
            };
            words.push(&rest[..end]);
            rest = rest[end..].trim_start();
        }
        words.reverse();
        Ok(Self(words))
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        self.0.pop()
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.0.last().copied()
    }

    /// Returns the next word; `what` names it in the error.
    pub(super) fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.next().ok_or_else(|| format!("expected {what}, found nothing"))
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<(), String> {
        let found = self.word(&format!("`{word}`"))?;
        if found == word { Ok(()) } else { Err(format!("expected `{word}`, found `{found}`")) }
    }

    /// Consumes `word` if it is next.
    pub(super) fn take_if(&mut self, word: &str) -> bool {
        let is = self.peek() == Some(word);
        if is {
            self.next();
        }
        is
    }

    pub(super) fn number<N: TryFrom<u64>>(&mut self) -> Result<N, String> {
        let word = self.word("a number")?;
        let value = number(word).ok_or_else(|| format!("expected a number, found `{word}`"))?;
        N::try_from(value).map_err(|_| format!("{value} is too large here"))
    }

    /// Parses a time span such as `3ms`, `40us`, `1s`.
    pub(super) fn span(&mut self) -> Result<Duration, String> {
        let word = self.word("a span of time")?;
        let wrong = || format!("expected a span such as 3ms, found `{word}`");
        let unit = word.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (count, unit) = word.split_at(unit);
        let count = count.parse().map_err(|_| wrong())?;
        match unit {
            "us" => Ok(Duration::from_micros(count)),
            "ms" => Ok(Duration::from_millis(count)),
            "s" => Ok(Duration::from_secs(count)),
            _ => Err(wrong()),
        }
    }

    /// Fails if a word is left.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.next().map_or(Ok(()), |word| Err(format!("`{word}` is one word too many")))
    }
}

/// Parses a decimal or `0x` number.
pub(super) fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}
