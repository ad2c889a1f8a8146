//! `farmem kv` with a tenth of its data local: requests of pipelining clients, with the far values read ahead of
//! the commands and without.

use super::{ActOutcome, times, to_f64};
use crate::outcome::Failure;
use crate::output;
use farmem::{RackConfig, Rng};
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Local memory of the server, in bytes.
const LOCAL: u64 = 48 << 20;
/// Bytes of a value.
const VALUE_LEN: usize = 4096;
/// Number of keys.
const KEYS: u32 = 122_880;
/// Number of look-ups of each kind.
const LOOK_UPS: usize = 16_384;
/// Requests that the client sends before it reads their replies.
const PIPELINED: usize = 64;
/// Bound on the wait for the server's start, and for a reply.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn play(config: &RackConfig) -> Result<ActOutcome, Failure> {
    let mut server = Server::start(config)?;
    let looked_up = server.fill().and_then(|()| Ok([server.look_up(false)?, server.look_up(true)?]));
    let [one_by_one, ahead] = looked_up.map_err(|error| server.explain(&error))?;
    let per_second = |looked: &LookUps| to_f64(LOOK_UPS as u64) / looked.time.as_secs_f64();
    let [slow, fast] = [&one_by_one, &ahead].map(per_second);
    let data = u64::from(KEYS) * VALUE_LEN as u64;
    Ok(ActOutcome {
        figures: format!(
            "{} MiB of data, {} MiB local: {} GETs one by one, {} with reading ahead",
            data >> 20,
            LOCAL >> 20,
            output::rate(slow),
            output::rate(fast)
        ),
        sentence: format!(
            "Reading ahead of pipelined requests made the server {} as fast, for {:.2} far READs a GET.",
            times(fast, slow),
            to_f64(ahead.far_reads) / to_f64(LOOK_UPS as u64)
        ),
        wrong_answers: one_by_one.wrong + ahead.wrong,
    })
}

/// Counts and time of look-ups.
struct LookUps {
    time: Duration,
    far_reads: u64,
    wrong: u64,
}

/// Server process with one client.
struct Server {
    child: Child,
    stream: BufReader<TcpStream>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _it_may_have_ended = self.child.wait();
    }
}

impl Server {
    fn start(config: &RackConfig) -> Result<Self, Failure> {
        let failed = |what: String| Failure::environment(format!("farmem kv: {what}"), "see docs/kv.md");
        let said = |error: io::Error| failed(error.to_string());
        let itself = std::env::current_exe().map_err(said)?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let address = free.map_err(said)?;
        let (port, local) = (address.port().to_string(), LOCAL.to_string());
        let mut command = Command::new(itself);
        command.args(["kv", "--domain", "tour-kv", "--port", &port, "--local", &local, "--rack"]);
        command.arg(&config.file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(said)?;
        let begin = Instant::now();
        loop {
            if let Ok(stream) = TcpStream::connect(address) {
                let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
                // From here on, dropping the server ends the process.
                let server = Self { child, stream: BufReader::with_capacity(1 << 18, stream) };
                return set.map(|()| server).map_err(said);
            }
            if child.try_wait().map_err(said)?.is_some() || begin.elapsed() > PATIENCE {
                let _it_may_have_ended = child.kill();
                let ended = child.wait_with_output().map_err(said)?;
                return Err(failed(String::from_utf8_lossy(&ended.stderr).trim().to_owned()));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Returns the failure of an exchange: the last words of the server, if it has ended, or else the error.
    fn explain(&mut self, error: &io::Error) -> Failure {
        let _it_may_have_ended = self.child.kill();
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _what_there_is = stderr.read_to_string(&mut said);
        }
        let said = said.lines().last().map_or_else(|| error.to_string(), str::to_owned);
        Failure::environment(format!("farmem kv: {said}"), "see docs/kv.md")
    }

    /// Sends a batch of requests in full, and reads a reply line and, of a value, its bytes for each.
    fn exchange(
        &mut self,
        requests: &[u8],
        replies: usize,
        mut check: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        self.stream.get_mut().write_all(requests)?;
        let mut reply = Vec::new();
        for number in 0..replies {
            reply.clear();
            self.stream.read_until(b'\n', &mut reply)?;
            let line = String::from_utf8_lossy(&reply).trim_end().to_owned();
            if let Some(len) = line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) {
                reply.resize(len + 2, 0);
                self.stream.read_exact(&mut reply)?;
                reply.truncate(len);
            } else if !line.starts_with('+') {
                return Err(io::Error::other(format!("the reply {line:?}")));
            }
            check(number, &reply);
        }
        Ok(())
    }

    /// Stores all keys.
    fn fill(&mut self) -> io::Result<()> {
        let mut requests = Vec::new();
        let keys: Vec<u32> = (0..KEYS).collect();
        for keys in keys.chunks(PIPELINED) {
            requests.clear();
            for &key in keys {
                write!(requests, "*3\r\n$3\r\nSET\r\n$8\r\n{key:08}\r\n${VALUE_LEN}\r\n")?;
                requests.extend_from_slice(&value(key));
                requests.extend_from_slice(b"\r\n");
            }
            self.exchange(&requests, keys.len(), |_, _| ())?;
        }
        Ok(())
    }

    /// Looks up keys at random, with reading ahead or without.
    fn look_up(&mut self, ahead: bool) -> io::Result<LookUps> {
        let setting = if ahead { "yes" } else { "no" };
        self.exchange(format!("CONFIG SET read-ahead {setting}\r\n").as_bytes(), 1, |_, _| ())?;
        let before = self.far_reads()?;
        let mut rng = Rng::from_number(11);
        let (mut wrong, begin) = (0, Instant::now());
        for _ in 0..LOOK_UPS / PIPELINED {
            let keys = [(); PIPELINED].map(|()| rng.below(KEYS));
            let mut requests = String::new();
            for key in keys {
                // Writing to a string does not fail.
                let _written = write!(requests, "*2\r\n$3\r\nGET\r\n$8\r\n{key:08}\r\n");
            }
            let check = |number: usize, reply: &[u8]| wrong += u64::from(*reply != value(keys[number]));
            self.exchange(requests.as_bytes(), PIPELINED, check)?;
        }
        let time = begin.elapsed();
        Ok(LookUps { time, far_reads: self.far_reads()? - before, wrong })
    }

    /// Returns the READs of far memory so far.
    fn far_reads(&mut self) -> io::Result<u64> {
        let mut count = None;
        self.exchange(b"INFO farmem\r\n", 1, |_, reply| {
            let text = String::from_utf8_lossy(reply);
            count = text.lines().find_map(|line| line.strip_prefix("far_reads:")?.parse().ok());
        })?;
        count.ok_or_else(|| io::Error::other("INFO has no far_reads"))
    }
}

/// Returns the value of a key: a number of its own in each place.
fn value(key: u32) -> [u8; VALUE_LEN] {
    let mut value = [0; VALUE_LEN];
    for (word, at) in value.chunks_exact_mut(8).zip(0_u64..) {
        word.copy_from_slice(&(u64::from(key) << 16 | at).to_le_bytes());
    }
    value
}
