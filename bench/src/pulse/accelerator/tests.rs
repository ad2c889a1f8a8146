use super::*;
use farmem_traversal::run;
use proptest::prelude::*;

const BASE: u64 = 0x10_0000;
const NODES: u64 = 4096;
const NODE_LEN: u64 = 64;

/// Webservice's look-up: a chain of {key, value, next}. The scratch pad holds the key and receives the value.
const FIND: &str = "
    .scratch 16
        ld8 r2, window[0]
        ld8 r3, scratch[0]
        ld8 r4, window[8]
        ld8 r5, window[16]
        jeq r2, r3, found
        next r5
    found:
        st8 scratch[8], r4
        ret
";

/// A memory full of nodes.
struct Fixture(Vec<u8>);

/// The error for a window outside the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Outside;

impl Fixture {
    /// Creates nodes; `next` returns the successor of each.
    fn new(next: impl Fn(u64) -> u64) -> Self {
        let node = |node| [node, node * 10, place(next(node)).0, 0, 0, 0, 0, 0];
        Self((0..NODES).flat_map(node).flat_map(u64::to_le_bytes).collect())
    }

    /// Does the memory pipeline's work: translation, protection, bytes.
    fn load(&self, addr: VirtAddr, window: &mut [u8]) -> Result<(), Outside> {
        let start = addr.0.checked_sub(BASE).and_then(|skip| usize::try_from(skip).ok()).ok_or(Outside)?;
        let bytes = self.0.get(start..).and_then(|rest| rest.get(..window.len())).ok_or(Outside)?;
        window.copy_from_slice(bytes);
        Ok(())
    }

    fn run(&self, design: Design, costs: &Costs, jobs: &[Job]) -> Account<Outside> {
        design.run(costs, jobs.to_vec(), &mut |addr, window: &mut [u8]| self.load(addr, window))
    }

    /// Asserts that every job of the account has the interpreter's result.
    fn judge(&self, jobs: &[Job], account: &Account<Outside>) {
        for (job, ended) in jobs.iter().zip(&account.ended) {
            let mut state = job.state.clone();
            let mut fetch = |addr, window: &mut [u8]| self.load(addr, window);
            let outcome = run(&job.program, &mut fetch, &mut state, job.limit);
            assert_eq!((&ended.outcome, &ended.state), (&outcome, &state));
        }
        assert_eq!(account.ended.len(), jobs.len());
    }
}

fn place(node: u64) -> VirtAddr {
    VirtAddr(BASE + node * NODE_LEN)
}

/// Creates a job that starts at `from` and looks for `key`.
fn job(program: &Program, arrives_ps: u64, from: u64, key: u64) -> Job {
    let mut scratch = vec![0; program.scratch_len()];
    scratch[..8].copy_from_slice(&key.to_le_bytes());
    Job { arrives_ps, program: program.clone(), state: State { cur_ptr: place(from), scratch }, limit: 1000 }
}

/// Returns costs at which one iteration of `program` takes `load_ps` to load and `logic_ps` to compute, as
/// exactly as the instructions divide it.
fn costs(program: &Program, load_ps: u64, logic_ps: u64, dispatch_ps: u64) -> Costs {
    let instruction_ps = logic_ps / u64::from(program.longest_path());
    Costs { pipelines: Accelerator { instruction_ps, load_ps, line_ps: load_ps / 4 }, dispatch_ps }
}

/// PULSE's figure 4: three traversals of two iterations, t_c = t_d / 2. One logic and two memory pipelines
/// take 8 units of t_c for them; two cores, with one more logic pipeline, take 12.
#[test]
fn figure_4() {
    let bed = Fixture::new(|node| node + 1);
    let program = Program::assemble(FIND).unwrap();
    let unit = u64::from(program.longest_path()) * 1000;
    let costs = costs(&program, 2 * unit, unit, 0);
    let jobs = [10, 20, 30].map(|from| job(&program, 0, from, from + 1));
    let cases = [
        (Design::Disaggregated { logic: 1, memory: 2 }, 8, 12),
        (Design::Coupled { cores: 2 }, 12, 0),
        (Design::Coupled { cores: 3 }, 6, 0),
        (Design::Coupled { cores: 1 }, 18, 0),
    ];
    for (design, units, dispatches) in cases {
        let account = bed.run(design, &costs, &jobs);
        bed.judge(&jobs, &account);
        assert_eq!(account.span_ps, units * unit, "{design:?}");
        assert_eq!((account.logic_ps, account.memory_ps), (6 * unit, 12 * unit));
        assert_eq!((account.lines, account.dispatches), (6, dispatches));
    }
}

/// Returns the throughput of a saturated design in jobs per second, and the latency of a lone job in
/// picoseconds.
fn measure(bed: &Fixture, design: Design, costs: &Costs, program: &Program) -> (f64, u64) {
    const JOBS: u64 = 240;
    const ITERATIONS: u64 = 48;
    let jobs = |gap_ps| -> Vec<Job> {
        let from = |n: u64| n * 97 % (NODES - ITERATIONS);
        (0..JOBS).map(|n| job(program, n * gap_ps, from(n), from(n) + ITERATIONS - 1)).collect()
    };
    let (flood, drops) = (jobs(0), jobs(1_000_000_000));
    let saturated = bed.run(design, costs, &flood);
    let alone = bed.run(design, costs, &drops);
    bed.judge(&flood, &saturated);
    bed.judge(&drops, &alone);
    assert!(saturated.ended.iter().all(|e| (e.outcome.iterations, e.outcome.end) == (48, End::Return)));
    (saturated.jobs_per_s(), alone.latency_ps())
}

/// Returns true when `a` is within this share of `b`.
fn near(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * b
}

/// PULSE's table 4 in shape: Webservice's look-up, 48 iterations, t_c / t_d = 1/16, times of PULSE's figure
/// 10. One logic pipeline and four memory pipelines match four cores, at a latency a few percent higher. More
/// logic pipelines bring nothing.
#[test]
fn table_4() {
    // The chain's order does not matter here, but all windows differ.
    let bed = Fixture::new(|node| node + 1);
    let program = Program::assemble(FIND).unwrap();
    let costs = costs(&program, 132_000, 132_000 / 16, 5_100);
    let mut table = String::from("design      Mops/s   latency us\n");
    let mut row = |name: String, (rate, latency): (f64, u64)| {
        table += &format!("{name:<11} {:>6.3}   {:>8.2}\n", rate / 1e6, latency as f64 / 1e6);
        (rate, latency as f64)
    };
    let coupled: Vec<_> = (1..=4)
        .map(|n| row(format!("coupled {n}"), measure(&bed, Design::Coupled { cores: n }, &costs, &program)))
        .collect();
    let apart: Vec<Vec<_>> = (1..=4)
        .map(|logic| {
            let design = |memory| Design::Disaggregated { logic, memory };
            (1..=4)
                .map(|n| row(format!("({logic}, {n})"), measure(&bed, design(n), &costs, &program)))
                .collect()
        })
        .collect();
    eprintln!("{table}");

    for (n, times) in (0..4).zip([1.0, 2.0, 3.0, 4.0]) {
        assert!(near(coupled[n].0, times * coupled[0].0, 0.02), "cores add up: {}", n + 1);
        assert!(near(apart[0][n].0, times * apart[0][0].0, 0.03), "memory pipelines add up: {}", n + 1);
        for (m, row) in apart.iter().enumerate() {
            assert!(
                near(row[n].0, apart[0][n].0, 0.03),
                "logic beyond eta * n brings nothing: {}, {}",
                m + 1,
                n + 1
            );
            let latency = row[n].1 / coupled[n].1;
            assert!(
                (1.0..1.1).contains(&latency),
                "the price of a scheduler is a few percent, not {latency}"
            );
        }
    }
    let (one_four, four_cores) = (apart[0][3].0, coupled[3].0);
    assert!(
        one_four >= 0.97 * four_cores && one_four <= 1.10 * four_cores,
        "{one_four} against {four_cores}"
    );
}

/// At t_c = 3/4 t_d, PULSE's own threshold for four memory pipelines, fewer than eta * n = 3 logic pipelines
/// are the bottleneck. With 3, the memory is busy for seven eighths of the time: each workspace belongs to
/// one logic pipeline, and 7 workspaces cannot be divided equally. With 4 the memory is always busy, and more
/// bring nothing (PULSE 4.2; 6.2, "Sensitivity").
#[test]
fn logic_pipelines_pay_up_to_eta() {
    const LOAD_PS: u64 = 140_000;
    let bed = Fixture::new(|node| node + 1);
    let program = Program::assemble(FIND).unwrap();
    let costs = costs(&program, LOAD_PS, LOAD_PS * 3 / 4, 0);
    let memory_bound = 4.0 * 1e12 / (48 * LOAD_PS) as f64;
    let shares = [1, 2, 3, 4, 6].map(|logic| {
        let design = Design::Disaggregated { logic, memory: 4 };
        measure(&bed, design, &costs, &program).0 / memory_bound
    });
    for (share, expected) in shares.into_iter().zip([1.0 / 3.0, 2.0 / 3.0, 7.0 / 8.0, 1.0, 1.0]) {
        assert!(near(share, expected, 0.02), "{shares:?}");
    }
}

/// A window across a line boundary takes two lines, and longer.
#[test]
fn time_is_by_lines_touched() {
    let bed = Fixture::new(|_| 0);
    let program = Program::assemble(".window 64\n ret").unwrap();
    let costs = costs(&program, 100_000, 1_000, 0);
    for (skip, lines, load_ps) in [(0, 1, 100_000), (1, 2, 125_000), (63, 2, 125_000)] {
        let state = State { cur_ptr: VirtAddr(BASE + skip), scratch: vec![] };
        let jobs = [Job { arrives_ps: 7, program: program.clone(), state, limit: 1 }];
        let account = bed.run(Design::Disaggregated { logic: 1, memory: 1 }, &costs, &jobs);
        bed.judge(&jobs, &account);
        assert_eq!((account.lines, account.memory_ps), (lines, load_ps));
        assert_eq!((account.span_ps, account.ended[0].latency_ps), (7 + load_ps + 1_000, load_ps + 1_000));
    }
}

fn design() -> impl Strategy<Value = Design> {
    prop_oneof![
        (1..5_usize).prop_map(|cores| Design::Coupled { cores }),
        (1..5_usize, 1..5_usize).prop_map(|(logic, memory)| Design::Disaggregated { logic, memory }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// In any design and with any arrivals, each job has the interpreter's result. No pipeline works longer
    /// than the run, and no job ends sooner than its hops take.
    #[test]
    fn any_design_computes_the_same(
        design in design(),
        stride in 1..NODES,
        dispatch_ps in 0..9_000_u64,
        jobs in prop::collection::vec((0..3_000_000_u64, 0..NODES + 8, 0..NODES + 8, 0..40_u32, 0..64_u64), 0..40),
    ) {
        // Some pointers lead out of the range, where the traversal ends.
        let bed = Fixture::new(|node| (node * stride + 1) % (NODES + 16));
        let program = Program::assemble(FIND).unwrap();
        let costs = costs(&program, 132_000, 33_000, dispatch_ps);
        let jobs: Vec<Job> = jobs
            .iter()
            .map(|&(arrives_ps, from, key, limit, skip)| {
                let mut job = Job { limit, ..job(&program, arrives_ps, from, key) };
                job.state.cur_ptr.0 += skip;
                job
            })
            .collect();
        let account = bed.run(design, &costs, &jobs);
        bed.judge(&jobs, &account);
        let hop_ps = program.cost(&costs.pipelines).logic_ps + costs.pipelines.load_ps;
        for ended in &account.ended {
            prop_assert!(ended.latency_ps >= u64::from(ended.outcome.iterations) * hop_ps);
        }
        let iterations: u64 = account.ended.iter().map(|e| u64::from(e.outcome.iterations)).sum();
        prop_assert_eq!(account.logic_ps, iterations * program.cost(&costs.pipelines).logic_ps);
        prop_assert!(account.memory_ps >= iterations * costs.pipelines.load_ps);
        prop_assert_eq!(bed.run(design, &costs, &jobs), account, "the same again");
    }
}
