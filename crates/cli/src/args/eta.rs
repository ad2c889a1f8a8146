//! The share of the memory time that the logic of an offloaded program may take, as an argument.

use farmem_compiler::Eta;

/// Parses a share, such as `3/4`, `0.75` or `1`.
pub(super) fn parse_eta(text: &str) -> Result<Eta, String> {
    let fraction = match text.split_once('/') {
        Some((logic, memory)) => logic.trim().parse().ok().zip(memory.trim().parse().ok()),
        None => decimal(text),
    };
    let eta = fraction.and_then(|(logic, memory)| Eta::new(logic, memory));
    eta.ok_or_else(|| "a fraction as 3/4 or a decimal as 0.75, more than 0 and at most 1".to_owned())
}

/// Returns a decimal as an exact fraction.
fn decimal(text: &str) -> Option<(u32, u32)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = part.len();
    if digits > 6 || part.bytes().any(|byte| !byte.is_ascii_digit()) {
        return None;
    }
    let scale = 10_u32.pow(u32::try_from(digits).ok()?);
    let part = if part.is_empty() { 0 } else { part.parse().ok()? };
    Some((whole.parse::<u32>().ok()?.checked_mul(scale)?.checked_add(part)?, scale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_compiler::Accelerator;

    #[test]
    fn eta_is_a_fraction_or_a_decimal() {
        for text in ["3/4", "0.75", "6/8"] {
            let eta = parse_eta(text).expect("an eta");
            // A ratio of 75 to 100 is just worth offloading, 76 to 100 is not.
            let cost = |logic| {
                let on = Accelerator { instruction_ps: logic, load_ps: 100, line_ps: 0 };
                farmem_compiler::Cost::new(1, 1, &on)
            };
            assert!(cost(75).offload(eta) && !cost(76).offload(eta), "{text}");
        }
        assert!(parse_eta("1").is_ok());
        for text in ["", "0", "1.1", "5/4", "3/0", "-1", "1e-3", "0.0000001", "a", ".5.5", "0.+1"] {
            assert!(parse_eta(text).is_err(), "{text}");
        }
    }
}
