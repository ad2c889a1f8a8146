//! Tasks: the same results as sequential operations, keyed locks, exclusive tasks, failures, and statistics.

use farmem::dispatch::Tally;
use farmem::hash_table::{HashTable, Key, Spread, VALUE_LEN, Value};
use farmem::task::{carry_out, run_one};
use farmem::{
    Answer, Client, Completed, Error, FarMemory, Next, Op, OpQueue, Policy, Profile, Program, Rack, Task,
    TaskStats, TraversalStop, VirtAddr,
};
use farmem_testkit::ObservedMemory;
use proptest::collection::vec;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Runs one operation and keeps its completion.
struct One {
    number: usize,
    op: Option<Op>,
    end: Option<Completed>,
}

impl Task for One {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        if let Some(op) = self.op.take() {
            queue.need(op);
            return Ok(Next::Need);
        }
        self.end = Some(queue.one());
        Ok(Next::Done)
    }
}

const LIST_SUM: &str = include_str!("../../../../testdata/programs/list_sum.pulse");

/// Builds a list over two memory nodes. The last element has a dangling pointer when `broken`.
fn list(client: &mut Client, len: u64, broken: bool) -> VirtAddr {
    let room = [1, 2].map(|node| client.allocate_on(16 * (len + 1), farmem::NodeId(node)).unwrap().base.0);
    let at = |n: u64| room[usize::try_from(n % 2).unwrap()] + 16 * n;
    for n in 0..len {
        let next = if n + 1 < len {
            at(n + 1)
        } else if broken {
            8
        } else {
            0
        };
        client.write(VirtAddr(at(n)), &[n.to_le_bytes(), next.to_le_bytes()].concat()).unwrap();
    }
    VirtAddr(at(0))
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Offload),
        Just(Policy::Host),
        Just(Policy::default()),
        Just(Policy::Auto(Profile::PULSE_BOARD))
    ]
}

/// Formats a result without its ticket.
fn said(result: &Result<(Answer, Vec<u8>), Error>) -> String {
    format!("{result:?}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Traversals as tasks end like `Client::dispatch`, at the memory nodes and at the host: results, scratch
    /// pads, errors, and the client's counts.
    #[test]
    fn tasks_and_dispatch_agree(
        lists in vec((1..30_u64, any::<bool>(), 0..40_u32, 0..8_u8), 1..20),
        policy in policy(),
        in_flight in 1..9_usize,
    ) {
        let rack = Rack::embedded_with(2, 16 << 20).unwrap();
        let (mut one, mut many) = (rack.client("same").unwrap(), rack.client("same").unwrap());
        let program = Program::assemble(LIST_SUM).unwrap();
        // Until both memory nodes know the program, and both clients know that.
        let short = list(&mut one, 2, false);
        for _ in 0..2 {
            one.dispatch(&program, short, vec![0; 16], 10, &Policy::Offload).unwrap();
        }
        many.dispatch(&program, short, vec![0; 16], 10, &Policy::Offload).unwrap();
        let before = (one.tally(), many.tally());
        let mut expected = Vec::new();
        let mut tasks = Vec::new();
        for (number, (len, broken, limit, spoilt)) in lists.into_iter().enumerate() {
            let cur_ptr = list(&mut one, len, broken);
            let scratch = vec![0; if spoilt == 0 { 8 } else { 16 }];
            let done = one.dispatch(&program, cur_ptr, scratch.clone(), limit, &policy);
            expected.push(said(&done.map(|d| (Answer::Traversed(d.end), d.scratch))));
            tasks.push(One { number, op: Some(Op::Traverse { program: program.clone(), cur_ptr, scratch, limit }), end: None });
        }
        let mut got = BTreeMap::new();
        let count = tasks.len() as u64;
        let mut took_all = TaskStats::default();
        many.run_tasks(tasks.into_iter(), in_flight, &policy, |task, took| {
            let end = task.end.unwrap();
            got.insert(task.number, said(&end.result.map(|answer| (answer, end.buf))));
            took_all.requests += took.requests;
            took_all.iterations += took.iterations;
            took_all.offloaded += took.offloaded;
            took_all.at_host += took.at_host;
        }).unwrap();
        prop_assert_eq!(got.len() as u64, count);
        for (number, expected) in expected.iter().enumerate() {
            prop_assert_eq!(&got[&number], expected, "list {}", number);
        }
        let since = |before: Tally, now: Tally| Tally {
            offloaded: now.offloaded - before.offloaded,
            at_host: now.at_host - before.at_host,
            requests: now.requests - before.requests,
            iterations: now.iterations - before.iterations,
        };
        let now = since(before.1, many.tally());
        prop_assert_eq!(since(before.0, one.tally()), now);
        let TaskStats { requests, offloaded, at_host, iterations, .. } = took_all;
        prop_assert_eq!(Tally { offloaded, at_host, requests, iterations }, now);
    }
}

/// Reads a word, then writes one more, under a keyed lock or without.
struct Increment {
    word: VirtAddr,
    /// The keyed lock to request, until it was requested.
    turn: Option<u64>,
    wrote: bool,
}

impl Task for Increment {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        if let Some(name) = self.turn.take() {
            return Ok(Next::Turn(name));
        }
        if self.wrote {
            return Ok(Next::Done);
        }
        let op = match queue.take() {
            None => Op::Read { addr: self.word, buf: vec![0; 8] },
            Some(read) => {
                read.result?;
                let value = u64::from_le_bytes(read.buf[..].try_into().unwrap());
                self.wrote = true;
                Op::Write { addr: self.word, buf: (value + 1).to_le_bytes().to_vec() }
            }
        };
        queue.need(op);
        Ok(Next::Need)
    }
}

/// Three words, eleven tasks for each: tasks with one lock key run one after the other; without locks,
/// additions are lost.
#[test]
fn a_turn_is_had_by_one() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("turn").unwrap();
    let base = client.allocate(4096).unwrap().base;
    let word = |n: u64| VirtAddr(base.0 + 8 * n);
    let mut values = |turns: bool| -> Vec<u64> {
        client.write(base, &[0; 24]).unwrap();
        let tasks = (0..33).map(|n| {
            let word = word(n % 3);
            Increment { word, turn: turns.then_some(word.0), wrote: false }
        });
        let mut done = 0;
        client
            .run_tasks(tasks, 16, &Policy::Offload, |_, took| {
                assert_eq!((took.round_trips, took.requests), (2, 2));
                done += 1;
            })
            .unwrap();
        assert_eq!(done, 33);
        let mut bytes = [0; 24];
        client.read(base, &mut bytes).unwrap();
        bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    };
    assert_eq!(values(true), [11, 11, 11]);
    assert!(values(false).iter().all(|&n| n < 11), "the test can fail");
}

/// Counts itself while it is between two exchanges; every fifth task asks to be exclusive in the middle.
struct ManyTasks {
    number: u64,
    word: VirtAddr,
    between: Rc<Cell<u32>>,
    step: u8,
    was_alone: bool,
}

impl Task for ManyTasks {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        self.step += 1;
        match self.step {
            1 if self.number.is_multiple_of(5) => return Ok(Next::Alone),
            1..=3 => {
                if queue.take().is_none() {
                    self.between.set(self.between.get() + 1);
                }
                queue.need(Op::Read { addr: self.word, buf: vec![0; 8] });
                queue.need(Op::FetchAdd { addr: self.word, add: 1 });
            }
            _ => {
                self.between.set(self.between.get() - 1);
                return Ok(Next::Done);
            }
        }
        Ok(Next::Need)
    }

    fn alone(&mut self, memory: &mut dyn FarMemory) -> Result<(), Error> {
        assert_eq!(self.between.get(), 0, "no other task is between two exchanges");
        memory.fetch_add(self.word, 1000)?;
        self.was_alone = true;
        Ok(())
    }
}

#[test]
fn exclusive_steps_run_alone() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("alone").unwrap();
    let word = client.allocate(4096).unwrap().base;
    let between = Rc::new(Cell::new(0));
    let tasks = (0..50).map(|number| ManyTasks {
        number,
        word,
        between: Rc::clone(&between),
        step: 0,
        was_alone: false,
    });
    let mut alone = 0;
    client
        .run_tasks(tasks, 7, &Policy::Offload, |task, took| {
            alone += u32::from(task.was_alone);
            // Two parallel operations are one round trip. An exclusive task takes one more, and one exchange
            // less.
            let exchanges = if task.was_alone { 2 } else { 3 };
            let extra = u64::from(task.was_alone);
            assert_eq!((took.round_trips, took.requests), (exchanges + extra, 2 * exchanges + extra));
        })
        .unwrap();
    assert_eq!(alone, 10);
    assert_eq!(client.fetch_add(word, 0).unwrap(), 10 * 1000 + 40 * 3 + 10 * 2);
}

/// A failed task ends the run after the operations in flight. Earlier outstanding operations still complete,
/// and the client works.
#[test]
fn a_failure_ends_the_run() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("failure").unwrap();
    let word = client.allocate(4096).unwrap().base;
    let before = client.submit(Op::FetchAdd { addr: word, add: 5 }).unwrap();
    let after = client.submit(Op::Read { addr: word, buf: vec![0; 8] }).unwrap();
    let bad = VirtAddr(word.0 + (1 << 40));
    let tasks =
        (0..20).map(|n| Increment { word: if n == 3 { bad } else { word }, turn: Some(0), wrote: false });
    let mut done = 0;
    let error = client.run_tasks(tasks, 8, &Policy::Offload, |_, _| done += 1).unwrap_err();
    assert!(matches!(error, Error::NotMapped { addr } if addr == bad), "{error}");
    assert_eq!(done, 3, "those before it in the queue for the turn");
    assert_eq!(client.wait(before).unwrap().result.unwrap(), Answer::Done { old: 0 });
    assert_eq!(client.wait(after).unwrap().buf, 5_u64.to_le_bytes());
    assert_eq!(client.fetch_add(word, 0).unwrap(), 5 + 3);
    assert!(client.next_completed().unwrap().is_none(), "nothing is left over");
}

/// One task on far memory that is no client: the same result, by reads.
#[test]
fn one_task_on_any_far_memory() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("any").unwrap();
    let mut table = HashTable::create(&mut client, 100, 1, Spread::Scattered).unwrap();
    let key = |n: u64| Key::of(&n.to_le_bytes());
    let value: Value = [9; VALUE_LEN];
    for n in 0..50 {
        table.insert(&mut client, key(n), &value).unwrap();
    }
    let looks = RefCell::new(0);
    let mut look = || *looks.borrow_mut() += 1;
    let mut task = One { number: 0, op: Some(table.find_op(key(1), Vec::new())), end: None };
    let took =
        run_one(&mut ObservedMemory::new(&mut client, &mut look), &mut task, &Policy::Offload).unwrap();
    assert_eq!(HashTable::found(&task.end.unwrap()), Some(value));
    // The bucket has the first key, the newest follows it, the second is the last.
    assert_eq!((took.round_trips, took.requests, took.iterations, took.at_host), (50, 50, 50, 1));
    let failed = carry_out(&mut client, Op::Read { addr: VirtAddr(8), buf: vec![0; 8] }, &Policy::Host);
    assert!(matches!(failed.result, Err(Error::NotMapped { .. })), "{failed:?}");
    let broken = Op::Traverse {
        program: Program::assemble(LIST_SUM).unwrap(),
        cur_ptr: VirtAddr(8),
        scratch: vec![0; 16],
        limit: 1,
    };
    let failed = carry_out(&mut client, broken, &Policy::Host);
    let reason = TraversalStop::NotMapped;
    assert!(matches!(failed.result, Err(Error::Traversal { reason: r, .. }) if r == reason), "{failed:?}");
    assert_eq!(*looks.borrow(), 0);
}
