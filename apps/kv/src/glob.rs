//! Redis's patterns: `*`, `?`, `[a-z]`, `[^a]`, and an escaped character.

/// Returns whether a text matches a pattern. The time is at most proportional to the product of both lengths, because
/// only the last star is tried again.
pub(crate) fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    // The position of the last star, and the end of the text that it matches.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let matched = match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
                continue;
            }
            None if read == text.len() => return true,
            None => None,
            Some(_) => text.get(read).and_then(|&byte| one(&pattern[at..], byte)),
        };
        match (matched, star) {
            (Some(len), _) => {
                at += len;
                read += 1;
            }
            (None, Some((from, had))) if had < text.len() => {
                star = Some((from, had + 1));
                (at, read) = (from + 1, had + 1);
            }
            (None, _) => return false,
        }
    }
}

/// Returns the length of the pattern's first element if it matches the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', rest @ ..] => class(rest, byte).map(|len| len + 1),
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// Returns the length of a class behind its bracket if the byte is in it.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = pattern.first() == Some(&b'^');
    let (mut at, mut found) = (usize::from(negated), false);
    loop {
        match pattern[at..] {
            [b']', ..] => {
                at += 1;
                break;
            }
            // A class that is not closed ends with the pattern.
            [] => break,
            [b'\\', escaped, ..] => {
                found |= escaped == byte;
                at += 2;
            }
            [first, b'-', last, ..] => {
                let (low, high) = (first.min(last), first.max(last));
                found |= (low..=high).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= literal == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn patterns() {
        for (pattern, text, is) in [
            ("*", "", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
            ("[", "x", false),
            ("a[b", "ab", true),
            ("key:*", "key:1", true),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), is, "{pattern} {text}");
        }
        // Many stars do not multiply the time.
        assert!(!glob(
            "a*".repeat(2_000).as_bytes(),
            "a".repeat(4_000).as_bytes().split_last().map_or(&[][..], |_| b"b")
        ));
    }
}
