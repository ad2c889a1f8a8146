//! Network namespaces for a test: a few machines of its own, joined by veth pairs, and threads that live in them.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Output};

/// Namespaces that go with the test.
#[derive(Debug)]
pub struct Namespaces {
    prefix: String,
    names: Vec<&'static str>,
}

impl Namespaces {
    /// Makes the namespaces. Where this process may not, this says so and returns `None`.
    ///
    /// # Panics
    /// When standard error is closed.
    pub fn new(test: &str, names: &[&'static str]) -> Option<Self> {
        remove_left();
        let prefix = format!("farmem-{test}-{}", std::process::id());
        let mut made = Self { prefix, names: Vec::new() };
        for &name in names {
            let output = Command::new("ip").args(["netns", "add", &made.full(name)]).output();
            let why = match &output {
                Ok(output) if output.status.success() => None,
                Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
                Err(error) => Some(format!("no command ip (package iproute2): {error}")),
            };
            if let Some(why) = why {
                // Past the test harness, which keeps what a passing test prints to itself.
                writeln!(std::io::stderr(), "skipped: {test}: no network namespaces: {why}")
                    .expect("standard error is open");
                return None;
            }
            made.names.push(name);
        }
        Some(made)
    }

    /// Returns the name of a namespace as `ip` knows it.
    #[must_use]
    pub fn full(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// Runs `ip` with these arguments in a namespace.
    ///
    /// # Panics
    /// When the command fails.
    pub fn ip(&self, name: &str, arguments: &str) -> String {
        let full = self.full(name);
        let output = Command::new("ip").args(["-n", &full]).args(arguments.split(' ')).output();
        text(&output.expect("ip starts"), arguments)
    }

    /// Sets a kernel parameter in a namespace.
    ///
    /// # Panics
    /// When the command fails.
    pub fn sysctl(&self, name: &str, setting: &str) {
        let full = self.full(name);
        let (key, value) = setting.split_once('=').expect("key=value");
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        let write = format!("echo {value} > {path}");
        let output = Command::new("ip").args(["netns", "exec", &full, "sh", "-c", &write]).output();
        text(&output.expect("ip starts"), setting);
    }

    /// Calls `does` in a thread of that namespace: sockets that it opens belong there, also when other threads use them later.
    ///
    /// # Panics
    /// When `does` panics.
    pub fn within<T: Send + 'static>(&self, name: &str, does: impl FnOnce() -> T + Send + 'static) -> T {
        let path = format!("/run/netns/{}", self.full(name));
        let thread = std::thread::spawn(move || {
            let namespace = File::open(path).expect("it is there");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
            does()
        });
        thread.join().expect("it does not panic")
    }
}

/// Removes the namespaces of tests that were killed: their names have the number of a process that has ended.
fn remove_left() {
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let process =
            name.strip_prefix("farmem-").and_then(|rest| rest.rsplit('-').nth(1)?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            // Another test may remove it at the same time.
            drop(Command::new("ip").args(["netns", "del", &name]).output());
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            drop(Command::new("ip").args(["netns", "del", &self.full(name)]).status());
        }
    }
}

fn text(output: &Output, doing: &str) -> String {
    assert!(output.status.success(), "{doing}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test was killed and left its namespace. The next test removes it, and no namespace of a process that runs.
    #[test]
    fn namespaces_of_killed_tests_are_removed() {
        let Some(running) = Namespaces::new("running", &["one"]) else { return };
        let mut ended = Command::new("true").spawn().unwrap();
        let left = format!("farmem-killed-{}-one", ended.id());
        ended.wait().unwrap();
        assert!(Command::new("ip").args(["netns", "add", &left]).status().unwrap().success());
        let exists = |name: &str| Path::new("/run/netns").join(name).exists();
        let next = Namespaces::new("next", &["one"]).unwrap();
        assert!(!exists(&left));
        assert!(exists(&running.full("one")) && exists(&next.full("one")));
    }
}
