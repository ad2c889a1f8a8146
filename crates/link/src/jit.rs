//! Program execution at memory nodes: an interpreter at first, machine code for programs that run often.
//!
//! [`Compiler`] connects a node's [`Compile`] with the engine's [`Jit`]. Compilation takes a thousand times
//! as long as one run. If a node compiled each program on arrival, a client with many programs would stall
//! it. So a program is interpreted for [`HOT`] iterations, and then compiled on a low-priority thread. A
//! program that cannot be compiled stays interpreted: it has the same results, but is several times slower.

use farmem_engine::{Compiled, Jit};
use farmem_memnode::{Compile, Logic};
use farmem_traversal::{Program, Step};
use farmem_wire::VirtAddr;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Minimum number of programs whose code the compiler keeps itself. The node keeps the code of running
/// programs, up to [`PROGRAMS_MAX`](farmem_memnode::PROGRAMS_MAX) and all in execution, so one suffices here.
const KEPT: usize = 1;
/// Number of interpreted iterations before a program is compiled. Machine code saves about 40 ns per
/// iteration, and compilation takes 1 ms. A program that has run for this long is likely to run for as long
/// again.
const HOT: u32 = 1024;
/// Maximum number of programs in the compiler's queue. If the queue is full, a program's count starts again.
const WAITING_MAX: usize = 64;
/// Niceness of the compiling thread: other threads of its CPU have priority.
const NICE: i32 = 19;

/// A converter of programs to the form that a memory node runs.
#[derive(Debug)]
pub struct Compiler(Backend);

#[derive(Debug)]
enum Backend {
    Machine {
        jit: Arc<Mutex<Jit>>,
        queue: Queue,
    },
    /// This machine has no compiler.
    NoMachine,
    Interpreter,
}

/// The queue of the compiling thread.
#[derive(Debug)]
enum Queue {
    /// No queue: programs are compiled on arrival.
    None,
    /// The compiler thread is spawned when the first program arrives.
    NotStarted,
    Started(SyncSender<Weak<Tier>>),
}

impl Compiler {
    /// Creates a compiler that compiles hot programs, if the engine supports this machine.
    #[must_use]
    pub fn jit() -> Self {
        Self::machine(Queue::NotStarted)
    }

    /// Creates a compiler that compiles each program on arrival, for comparisons and tests.
    #[must_use]
    pub fn jit_at_once() -> Self {
        Self::machine(Queue::None)
    }

    fn machine(queue: Queue) -> Self {
        let machine = |jit| Backend::Machine { jit: Arc::new(Mutex::new(jit)), queue };
        Self(Jit::new(KEPT).map_or(Backend::NoMachine, machine))
    }

    /// Creates a compiler that only interprets programs, for comparisons.
    #[must_use]
    pub const fn interpreter() -> Self {
        Self(Backend::Interpreter)
    }
}

impl Compile for Compiler {
    type Logic = Running;

    fn compile(&mut self, program: &Program) -> Running {
        let (jit, queue) = match &mut self.0 {
            Backend::Machine { jit, queue } => (jit, queue),
            Backend::NoMachine => {
                return Running(Form::Interpreted { program: program.clone(), fell_back: true });
            }
            Backend::Interpreter => {
                return Running(Form::Interpreted { program: program.clone(), fell_back: false });
            }
        };
        if let Queue::NotStarted = queue {
            *queue = start(Arc::clone(jit)).map_or(Queue::None, Queue::Started);
        }
        let waits = match queue {
            Queue::Started(queue) => Some(queue.clone()),
            Queue::None | Queue::NotStarted => None,
        };
        let (code, iterations) = (OnceLock::new(), AtomicU32::new(0));
        let at_once = waits.is_none();
        let tier = Arc::new(Tier { program: program.clone(), code, iterations, waits });
        if at_once {
            tier.fill(jit);
        }
        Running(Form::Tiered(tier))
    }

    fn compile_now(&mut self, program: &Program) -> Running {
        let running = self.compile(program);
        if let (Backend::Machine { jit, .. }, Form::Tiered(tier)) = (&self.0, &running.0) {
            tier.fill(jit);
        }
        running
    }
}

/// Starts the compiling thread. Returns `None` if the system cannot start a thread; then programs are
/// compiled on arrival.
fn start(jit: Arc<Mutex<Jit>>) -> Option<SyncSender<Weak<Tier>>> {
    let (queue, waiting) = sync_channel(WAITING_MAX);
    let thread = std::thread::Builder::new().name("farmem-compile".into());
    thread.spawn(move || compile_waiting(&jit, &waiting)).ok()?;
    Some(queue)
}

/// Compiles queued programs until no sender is left.
fn compile_waiting(jit: &Mutex<Jit>, waiting: &Receiver<Weak<Tier>>) {
    // Linux sets the niceness of this thread alone. A refusal only leaves the thread with its normal
    // priority.
    let _refused = rustix::process::nice(NICE);
    for tier in waiting {
        // The node may have dropped the program meanwhile.
        if let Some(tier) = tier.upgrade() {
            tier.fill(jit);
        }
    }
}

/// A program that is interpreted until its code is ready.
#[derive(Debug)]
struct Tier {
    program: Program,
    /// The code, stored inline because every hop reads it; `None` inside if the compilation failed.
    code: OnceLock<Option<Compiled>>,
    /// Number of interpreted iterations.
    iterations: AtomicU32,
    /// The queue of the compiling thread; `None` if the program was compiled on arrival.
    waits: Option<SyncSender<Weak<Self>>>,
}

impl Tier {
    /// Compiles the program, unless it is compiled.
    fn fill(&self, jit: &Mutex<Jit>) {
        self.code.get_or_init(|| {
            // A panic during a compilation leaves no inconsistent state: every compilation clears its initial
            // state.
            let mut jit = jit.lock().unwrap_or_else(PoisonError::into_inner);
            let compiled = jit.make(&self.program);
            if let Err(why) = &compiled {
                // A closed stderr is no fault.
                drop(writeln!(io::stderr(), "farmem: a program is interpreted: {why}"));
            }
            compiled.ok()
        });
    }

    #[inline]
    fn code(self: &Arc<Self>) -> Option<&Compiled> {
        match self.code.get() {
            Some(code) => code.as_ref(),
            None => self.count(),
        }
    }

    /// Counts an iteration without code, and queues the program for compilation when it becomes hot.
    #[cold]
    fn count(self: &Arc<Self>) -> Option<&Compiled> {
        let iterations = self.iterations.load(Relaxed) + 1;
        let asks = iterations == HOT;
        let waits = self.waits.as_ref().filter(|_| asks);
        // If the queue is full, the program is queued again after as many iterations.
        let is_full = waits.is_some_and(|queue| queue.try_send(Arc::downgrade(self)).is_err());
        self.iterations.store(if is_full { 0 } else { iterations.min(HOT) }, Relaxed);
        None
    }
}

/// A program in the form that a memory node runs.
#[derive(Debug)]
pub struct Running(Form);

#[derive(Debug)]
enum Form {
    Tiered(Arc<Tier>),
    Interpreted { program: Program, fell_back: bool },
}

impl Running {
    /// Returns true if the program runs as machine code by now.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        matches!(&self.0, Form::Tiered(tier) if matches!(tier.code.get(), Some(Some(_))))
    }
}

impl Logic for Running {
    #[inline]
    fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        let program = match &self.0 {
            Form::Tiered(tier) => match tier.code() {
                Some(compiled) => return compiled.step(window, cur_ptr, scratch),
                None => &tier.program,
            },
            Form::Interpreted { program, .. } => program,
        };
        program.step(window, cur_ptr, scratch)
    }

    fn step_storing(&self, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        let program = match &self.0 {
            Form::Tiered(tier) => match tier.code() {
                Some(compiled) => return compiled.step_storing(window, cur_ptr, scratch),
                None => &tier.program,
            },
            Form::Interpreted { program, .. } => program,
        };
        program.step_storing(window, cur_ptr, scratch)
    }

    fn fell_back(&self) -> bool {
        match &self.0 {
            Form::Tiered(tier) => matches!(tier.code.get(), Some(None)),
            Form::Interpreted { fell_back, .. } => *fell_back,
        }
    }
}

#[cfg(test)]
mod reads;

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        Program::assemble(".window 8\n.scratch 8\n ld8 r2, window[0]\n st8 scratch[0], r2\n next r2").unwrap()
    }

    fn step(running: &Running) {
        let (mut cur_ptr, mut scratch) = (VirtAddr(1), [0; 8]);
        assert_eq!(running.step(&[7; 8], &mut cur_ptr, &mut scratch), Step::Next);
        assert_eq!((cur_ptr, scratch), (VirtAddr(0x0707_0707_0707_0707), [7; 8]));
    }

    /// All compilers yield the same results, and report their form. A machine without a compiler interprets,
    /// and reports that as a fallback.
    #[test]
    fn a_program_runs_whichever_way_there_is() {
        let ways =
            [Compiler::jit_at_once(), Compiler::jit(), Compiler::interpreter(), Compiler(Backend::NoMachine)];
        let said = ways.map(|mut compiler| {
            let running = compiler.compile(&program());
            step(&running);
            (running.is_compiled(), running.fell_back())
        });
        assert_eq!(said, [(true, false), (false, false), (false, false), (false, true)]);
        assert!(Compiler::jit().compile_now(&program()).is_compiled());
    }

    /// A program is interpreted until compilation pays, not one iteration less. Then its code is ready, with
    /// the same results.
    #[test]
    fn what_is_used_often_is_compiled_beside() {
        let mut compiler = Compiler::jit();
        let running = compiler.compile(&program());
        (1..HOT).for_each(|_| step(&running));
        let Form::Tiered(tier) = &running.0 else { panic!("this machine has a compiler") };
        assert_eq!((tier.iterations.load(Relaxed), tier.code.get().is_none()), (HOT - 1, true));
        while !running.is_compiled() {
            step(&running);
        }
        assert_eq!(tier.iterations.load(Relaxed), HOT, "it asked once");
        step(&running);
    }

    /// The compiling thread has the lowest priority on its CPU, and the priority of the thread that answers
    /// is unchanged.
    #[test]
    fn who_compiles_has_the_cpu_last() {
        let nice = |task: &std::path::Path| -> Option<(String, i32)> {
            let stat = std::fs::read_to_string(task.join("stat")).ok()?;
            let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
            Some((name.to_owned(), rest.split_whitespace().nth(16)?.parse().ok()?))
        };
        let own = nice("/proc/thread-self".as_ref()).expect("the kernel says it").1;
        let mut compiler = Compiler::jit();
        let running = compiler.compile(&program());
        while !running.is_compiled() {
            step(&running);
        }
        let tasks = std::fs::read_dir("/proc/self/task").expect("there is a /proc").flatten();
        let compilers =
            tasks.filter_map(|task| nice(&task.path())).filter(|(name, _)| name == "farmem-compile");
        assert!(compilers.map(|(_, nice)| nice).any(|nice| nice == NICE), "one at least has compiled");
        assert_eq!(nice("/proc/thread-self".as_ref()).expect("it still does").1, own);
    }

    /// Many programs that run once each are never queued for compilation.
    #[test]
    fn what_runs_once_is_not_compiled() {
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let jit = Jit::new(KEPT).unwrap();
        let mut compiler =
            Compiler(Backend::Machine { jit: Arc::new(Mutex::new(jit)), queue: Queue::Started(queue) });
        for n in 1..=1000 {
            let program =
                Program::assemble(&format!(".window 8\n.scratch 8\n mov r2, {n}\n next r2")).unwrap();
            let running = compiler.compile(&program);
            let (mut cur_ptr, mut scratch) = (VirtAddr(1), [0; 8]);
            assert_eq!(running.step(&[7; 8], &mut cur_ptr, &mut scratch), Step::Next);
            assert_eq!(cur_ptr, VirtAddr(n));
        }
        assert!(waiting.try_recv().is_err());
        // Without a compiling thread, hot programs wait. When the queue is full, their counts restart, and
        // they continue to run.
        let running: Vec<Running> = (0..=WAITING_MAX).map(|_| compiler.compile(&program())).collect();
        running.iter().for_each(|running| (0..HOT).for_each(|_| step(running)));
        let counted = |running: &Running| match &running.0 {
            Form::Tiered(tier) => tier.iterations.load(Relaxed),
            Form::Interpreted { .. } => panic!("this machine has a compiler"),
        };
        let [waits, again] =
            [&running[..WAITING_MAX], &running[WAITING_MAX..]].map(|some| some.iter().map(counted));
        assert!(waits.eq([HOT; WAITING_MAX]) && again.eq([0]));
        assert_eq!(waiting.try_iter().count(), WAITING_MAX);
    }
}
