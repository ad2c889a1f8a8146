//! Tests of userfaultfd, which far memory by loads and stores needs.

use super::{Finding, Support};
use farmem_preload_abi::userfaultfd::{Features, OpenError, Reach, Userfaultfd};

const NAME: &str = "userfaultfd";

pub(super) fn examine() -> Finding {
    match Userfaultfd::open(Reach::Full, Features::WINDOW) {
        Ok(uffd) => full(&uffd),
        Err(refused) => match Userfaultfd::open(Reach::UserMode, Features::WINDOW) {
            Ok(_) => user_mode(&refused),
            Err(missing) => none(&missing),
        },
    }
}

fn full(uffd: &Userfaultfd) -> Finding {
    let by = if uffd.by_device() { "by /dev/userfaultfd" } else { "by the system call" };
    Finding::ok(NAME, format!("full, {by}: `farmem run` works, and so do system calls on far memory"))
}

fn user_mode(refused: &OpenError) -> Finding {
    let detail = "user mode only: `farmem run` does not start, and system calls on far memory of the API fail with EFAULT";
    Finding::new(NAME, Support::Degraded, detail, remedy(refused))
}

fn none(missing: &OpenError) -> Finding {
    let detail = format!("far memory by loads and stores will not work: {missing}");
    Finding::new(NAME, Support::Missing, detail, remedy(missing))
}

fn remedy(refused: &OpenError) -> String {
    match refused {
        OpenError::NotPermitted { remedy, .. } => remedy.clone(),
        _ => "use Linux 6.6 or newer".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The finding of a refusal has the error's remedy.
    #[test]
    fn findings_say_what_to_do() {
        let refused = OpenError::NotPermitted { remedy: "be root".into() };
        let finding = user_mode(&refused);
        assert_eq!((finding.state, finding.remedy.as_str()), (Support::Degraded, "be root"));
        let old = OpenError::System { source: std::io::ErrorKind::Unsupported.into() };
        let finding = none(&old);
        assert_eq!(finding.state, Support::Missing);
        assert!(finding.remedy.contains("6.6") && finding.detail.contains("cannot serve"));
    }
}
