//! The command by which an administrator permits a user to serve page faults of system calls.
//!
//! Key function: [`command`]. Such a userfaultfd needs one of three: CAP_SYS_PTRACE in the initial user
//! namespace, a device that the user may open, or a setting for all users. Root of another user namespace
//! has none of them.

use std::path::Path;

/// The userfaultfd device. [`Reach::Full`](crate::userfaultfd::Reach::Full) needs CAP_SYS_PTRACE, `vm.unprivileged_userfaultfd`, or this device.
pub(crate) const DEVICE: &str = "/dev/userfaultfd";
/// The directory that exists while udev runs.
const UDEV: &str = "/run/udev";

/// Returns the remedy of a user without the permission: one command, to be run once, whose effect survives a
/// reboot.
pub(crate) fn remedy() -> String {
    let has_udev = Path::new(UDEV).exists() && Path::new(DEVICE).exists();
    let group = rustix::process::getegid().as_raw();
    let who = if has_udev { format!("group {group}") } else { "every user".to_owned() };
    format!("an administrator permits it to {who}, once and for all boots: {}", command(has_udev, group))
}

/// Returns the command. Where udev runs, it gives the device to one group, else the permission to all users.
fn command(has_udev: bool, group: u32) -> String {
    if has_udev {
        format!(
            "sudo sh -c 'echo KERNEL==\\\"userfaultfd\\\", GROUP=\\\"{group}\\\", MODE=\\\"0660\\\" > /etc/udev/rules.d/60-farmem.rules && \
             chgrp {group} {DEVICE} && chmod 660 {DEVICE}'"
        )
    } else {
        const FILE: &str = "/etc/sysctl.d/60-farmem.conf";
        format!("sudo sh -c 'echo vm.unprivileged_userfaultfd=1 > {FILE} && sysctl -p {FILE}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A shell takes each command for one, and the udev rule keeps its quotes.
    #[test]
    fn a_shell_reads_the_command_as_meant() {
        let read = |command: &str| {
            // The shell prints the words in place of running them.
            let printed = command.replacen("sudo", "printf '[%s]'", 1);
            let ended = Command::new("sh").args(["-c", &printed]).output().expect("there is a shell");
            String::from_utf8(ended.stdout).expect("ASCII")
        };
        let udev = read(&command(true, 1000));
        assert!(udev.starts_with("[sh][-c][echo KERNEL=="), "{udev}");
        let echo = udev.trim_start_matches("[sh][-c][").split(" > ").next().expect("a command");
        let rule = Command::new("sh").args(["-c", echo]).output().expect("there is a shell").stdout;
        assert_eq!(rule, b"KERNEL==\"userfaultfd\", GROUP=\"1000\", MODE=\"0660\"\n");
        let sysctl = read(&command(false, 1000));
        assert!(
            sysctl.starts_with("[sh][-c][echo vm.unprivileged_userfaultfd=1 > /etc/sysctl.d/"),
            "{sysctl}"
        );
    }
}
