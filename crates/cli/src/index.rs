//! `farmem index`: commands for an index in switches, and its cost.

mod fabric;
pub(crate) mod live;
pub(crate) mod service;

use crate::args::IndexPlan;
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use farmem::Rng;
use farmem_index::{
    Budget, Excess, Memory, NodeSet, PART_STAGES, Part, Plan, Range, RangeTables, SetNode, StageUse, Step,
    TreeView, accesses_left, fat_root, select_layers,
};
use farmem_workload::ycsb::{self, ScrambledZipfian};
use farmem_workload::{Keys, to_f64};
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

/// Maximum number of keys in a file.
const KEYS_MAX: usize = 20_000_000;
/// Maximum length of a key file, in bytes: more than `KEYS_MAX` keys with their accesses need.
const FILE_MAX: u64 = 1 << 30;

/// Index and its cost.
#[derive(Serialize)]
struct Account {
    tree: Tree,
    root: Root,
    sets: Vec<Set>,
    sets_asked: usize,
    /// READs of a look-up from the root of the tree, including its leaf. `reads_with` counts from where the
    /// index leads. `None` without look-ups.
    reads_without: Option<f64>,
    reads_with: Option<f64>,
    budget: Allowed,
    stages: Vec<Stage>,
    /// Reasons why the index does not fit, with remedies.
    excess: Vec<String>,
    fits: bool,
}

#[derive(Serialize)]
struct Tree {
    keys: usize,
    /// Number of levels of inner nodes.
    levels: u8,
    inner_nodes: usize,
    accesses: u64,
}

#[derive(Serialize)]
struct Root {
    ranges: usize,
    default_results: bool,
}

#[derive(Serialize)]
struct Set {
    nodes: usize,
    /// Share of all accesses that concern nodes of this set.
    share: Option<f64>,
}

/// Budget of each stage, and the numbers of switches and stages.
#[derive(Serialize)]
struct Allowed {
    switches: usize,
    stages: usize,
    tables: usize,
    ternary_tables: usize,
    tcam_bits: u64,
    sram_bits: u64,
}

#[derive(Serialize)]
struct Stage {
    /// Switch of the part, from 1. Like the stage, `None` when no stage has room.
    switch: Option<usize>,
    stage: Option<usize>,
    part: String,
    holds: String,
    tables: usize,
    ternary_tables: usize,
    entries: usize,
    tcam_bits: u64,
    sram_bits: u64,
    fits: bool,
}

impl Report for Account {
    fn text(&self) -> String {
        let Tree { keys, levels, inner_nodes, accesses } = &self.tree;
        let mut text = format!(
            "tree: {} keys, {} inner nodes in {levels} levels, {} look-ups\nfat root: {} ranges\n",
            count(*keys),
            count(*inner_nodes),
            output::count(*accesses),
            self.root.ranges
        );
        for (n, set) in self.sets.iter().enumerate() {
            let share = set
                .share
                .map_or_else(String::new, |share| format!(", {:.1} % of look-ups come by", share * 100.0));
            text += &format!("set {}: {} nodes{share}\n", n + 1, count(set.nodes));
        }
        text += &self.left_out();
        if let (Some(without), Some(with)) = (self.reads_without, self.reads_with) {
            text += &format!("READs of a look-up: {without:.2} without the index, {with:.2} with it\n");
        }
        text += &Self::table(&self.stages, &self.budget);
        let Allowed { switches, stages, tables, ternary_tables, tcam_bits, sram_bits } = &self.budget;
        text += &format!(
            "budget: {switches} x {stages} stages; in each {tables} tables ({ternary_tables} ternary), {} bits of TCAM, {} of SRAM\n",
            output::count(*tcam_bits),
            output::count(*sram_bits)
        );
        self.excess.iter().for_each(|line| text += &format!("{line}\n"));
        text + if self.fits { "It fits.\n" } else { "It does not fit.\n" }
    }
}

impl Account {
    /// Returns the table of all stages, with a row for each.
    fn table(stages: &[Stage], budget: &Allowed) -> String {
        let heading = ["stage", "part", "holds", "tables", "entries", "TCAM bits", "SRAM bits", "fits"];
        let rows: Vec<Vec<String>> = stages.iter().map(|stage| stage.row(budget)).collect();
        output::table(&heading, &rows)
    }

    /// Describes the requested sets that the index lacks.
    fn left_out(&self) -> String {
        let (have, asked) = (self.sets.len(), self.sets_asked);
        let which = match asked - have {
            0 => return String::new(),
            1 => format!("set {asked}"),
            _ => format!("sets {} to {asked}", have + 1),
        };
        format!("{which}: left out, no inner nodes are below the one before\n")
    }
}

impl Stage {
    fn row(&self, budget: &Allowed) -> Vec<String> {
        let place = match (self.switch, self.stage) {
            (Some(switch), Some(stage)) => format!("{switch}.{stage}"),
            _ => "-".to_owned(),
        };
        let part_of = |bits: u64, all: u64| {
            format!("{} ({:.0} %)", output::count(bits), 100.0 * to_f64(bits) / to_f64(all.max(1)))
        };
        vec![
            place,
            self.part.clone(),
            self.holds.clone(),
            self.tables.to_string(),
            count(self.entries),
            part_of(self.tcam_bits, budget.tcam_bits),
            part_of(self.sram_bits, budget.sram_bits),
            if self.fits { "yes" } else { "no" }.to_owned(),
        ]
    }
}

/// Plans an index. The command ends with 1 when the index does not fit.
pub(crate) fn plan(args: &IndexPlan) -> Result<End, Failure> {
    if let Some(pods) = args.pods {
        return fabric::plan(args, pods);
    }
    let (tree, about) = tree_of(args)?;
    let root = fat_root(&tree, args.ranges);
    let sets = select_layers(&tree, &root, args.sets, args.nodes);
    let account = account(args, &tree, (&root, sets), about)?;
    output::print(&account, args.json);
    Ok(if account.fits { End::Fine } else { End::Violation })
}

/// Returns the tree of the plan, as a bulk load builds it.
fn tree_of(args: &IndexPlan) -> Result<(TreeView, Tree), Failure> {
    let keys = match &args.keys_file {
        Some(file) => read_keys(file)?,
        None => drawn(args),
    };
    let count = keys.len();
    let accesses = keys.iter().fold(0, |sum: u64, (_, accesses)| sum.saturating_add(*accesses));
    let tree = TreeView::bulk_loaded(keys, args.fill).map_err(|error| internal(&error))?;
    let inner = || tree.nodes().map(|(_, node)| node).filter(|node| node.level > 0);
    let levels = inner().map(|node| node.level).max().unwrap_or(0);
    let about = Tree { keys: count, levels, inner_nodes: inner().count(), accesses };
    Ok((tree, about))
}

/// Returns the budget of a switch.
fn budget_of(args: &IndexPlan) -> Budget {
    let tofino = Budget::TOFINO;
    Budget {
        stages: args.stages,
        tcam: Memory { blocks: args.tcam_blocks, ..tofino.tcam },
        sram: Memory { blocks: args.sram_blocks, ..tofino.sram },
        ..tofino
    }
}

/// Returns the budget as the report shows it.
fn allowed(args: &IndexPlan, switches: usize) -> Allowed {
    let budget = budget_of(args);
    Allowed {
        switches,
        stages: budget.stages,
        tables: budget.tables,
        ternary_tables: budget.ternary_tables,
        tcam_bits: budget.tcam.bits(),
        sram_bits: budget.sram.bits(),
    }
}

/// Returns the READs of a look-up without the index and with it. Returns `None` without look-ups.
fn reads(
    tree: &TreeView,
    root: &[Range],
    sets: &[Vec<SetNode>],
    operations: u64,
) -> (Option<f64>, Option<f64>) {
    let inner = tree.nodes().map(|(_, node)| node).filter(|node| node.level > 0);
    let all = inner.fold(0, |sum: u64, node| sum.saturating_add(node.accesses));
    let left = accesses_left(tree, root, sets);
    let each = |accesses: u64| (operations > 0).then(|| to_f64(accesses) / to_f64(operations) + 1.0);
    (each(all), each(left))
}

fn account(
    args: &IndexPlan,
    tree: &TreeView,
    (root, sets): (&[Range], Vec<Vec<SetNode>>),
    about: Tree,
) -> Result<Account, Failure> {
    let operations = about.accesses;
    let of_look_ups = |accesses: u64| (operations > 0).then(|| to_f64(accesses) / to_f64(operations));
    let come_by = |set: &[SetNode]| {
        let nodes = set.iter().filter_map(|node| tree.node(node.addr));
        of_look_ups(nodes.fold(0, |sum: u64, node| sum.saturating_add(node.accesses)))
    };
    let shares: Vec<Set> = sets.iter().map(|set| Set { nodes: set.len(), share: come_by(set) }).collect();
    let (reads_without, reads_with) = reads(tree, root, &sets, operations);
    let tables = RangeTables::new(root).map_err(|error| internal(&error))?;
    let tables = if args.default_results { tables.with_default_results() } else { tables };
    let sets: Result<Vec<NodeSet>, _> = sets.into_iter().map(NodeSet::new).collect();
    let plan = Plan::new(
        Some(&tables),
        &sets.map_err(|error| internal(&error))?,
        budget_of(args),
        args.switches,
        args.addr_bits,
    );
    let excess = plan.excess();
    Ok(Account {
        tree: about,
        root: Root { ranges: root.len(), default_results: args.default_results },
        sets: shares,
        sets_asked: args.sets,
        reads_without,
        reads_with,
        budget: allowed(args, args.switches),
        stages: plan.stages().iter().enumerate().map(|(at, used)| stage(&plan, &excess, at, used)).collect(),
        excess: excess.iter().map(|excess| format!("{excess}: {}", remedy(excess))).collect(),
        fits: excess.is_empty(),
    })
}

fn stage(plan: &Plan, excess: &[Excess], at: usize, used: &StageUse) -> Stage {
    let budget = plan.budget();
    let in_a_switch = budget.stages / PART_STAGES * PART_STAGES;
    let place = (at < plan.room()).then(|| (at / in_a_switch + 1, at % in_a_switch + 1));
    let here = |excess: &Excess| match *excess {
        Excess::Stages { .. } => place.is_none(),
        Excess::Tables { stage }
        | Excess::TernaryTables { stage }
        | Excess::Tcam { stage }
        | Excess::Sram { stage } => stage == at,
    };
    Stage {
        switch: place.map(|(switch, _)| switch),
        stage: place.map(|(_, stage)| stage),
        part: match used.part {
            Part::Root => "fat root".to_owned(),
            Part::Set(number) => format!("set {number}"),
        },
        holds: match used.step {
            Step::Ranges { low_bit, encoded } => {
                format!(
                    "key[{}:{low_bit}], {encoded} range {}",
                    low_bit + 15,
                    if encoded == 1 { "table" } else { "tables" }
                )
            }
            Step::Child => "range to child".to_owned(),
            Step::Free => "free for the way out".to_owned(),
            Step::Pivots => "get_pivot, cal_result".to_owned(),
            Step::ChildAddress => "get_child_address".to_owned(),
        },
        tables: used.tables(),
        ternary_tables: used.ternary_tables,
        entries: used.entries,
        tcam_bits: used.tcam_blocks.saturating_mul(budget.tcam.block_bits()),
        sram_bits: used.sram_blocks.saturating_mul(budget.sram.block_bits()),
        fits: !excess.iter().any(here),
    }
}

const fn remedy(excess: &Excess) -> &'static str {
    match excess {
        Excess::Stages { .. } => "fewer --sets, or more --switches",
        Excess::Tables { .. } | Excess::TernaryTables { .. } => "no index fits such a stage",
        Excess::Tcam { .. } => "fewer --ranges, or --default-results",
        Excess::Sram { .. } => "fewer --nodes or --ranges, or fewer --addr-bits",
    }
}

/// Returns the failure for an inconsistent tree, which only a bug of this command can produce.
fn internal(error: &dyn std::error::Error) -> Failure {
    Failure::environment(error.to_string(), "this is a bug of farmem: report it with the command line")
}

/// Returns the keys of the records in order, each with its number of accesses among the drawn look-ups.
fn drawn(args: &IndexPlan) -> Vec<(u64, u64)> {
    let key = |record: u64| if args.dense { record } else { ycsb::hash(record) };
    let mut keys: Vec<(u64, u64)> = (0..args.records).map(|record| (key(record), 0)).collect();
    let mut rng = Rng::from_number(args.seed);
    if args.records > 0 {
        let mut zipfian = ScrambledZipfian::new(args.records);
        for _ in 0..args.operations {
            let record = match args.keys {
                Keys::Zipfian => zipfian.next(&mut rng),
                Keys::Uniform => rng.next_u64() % args.records,
            };
            keys[usize::try_from(record).expect("records are few")].1 += 1;
        }
    }
    merged(keys)
}

/// Sorts the keys and merges equal ones by adding their accesses.
fn merged(mut keys: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    keys.sort_unstable();
    keys.dedup_by(|again, kept| {
        let same = again.0 == kept.0;
        if same {
            kept.1 = kept.1.saturating_add(again.1);
        }
        same
    });
    keys
}

fn read_keys(file: &Path) -> Result<Vec<(u64, u64)>, Failure> {
    let wrong = |what: String| {
        let remedy =
            "each line holds a key, decimal or 0x..., and optionally its number of accesses after it";
        Failure::environment(format!("{}: {what}", file.display()), remedy)
    };
    let mut input = File::open(file).map_err(|error| wrong(error.to_string()))?.take(FILE_MAX);
    let lines = BufReader::new(&mut input).lines().enumerate();
    let keys: Result<Vec<(u64, u64)>, Failure> = lines
        .map(|(n, line)| (n, line.map_err(|error| wrong(error.to_string()))))
        .filter(|(_, line)| !matches!(line, Ok(line) if line.trim().is_empty()))
        .take(KEYS_MAX + 1)
        .map(|(n, line)| {
            let line = line?;
            parse_line(&line).ok_or_else(|| wrong(format!("line {} is no key: {line:.40}", n + 1)))
        })
        .collect();
    let keys = keys?;
    if keys.len() > KEYS_MAX || input.limit() == 0 {
        return Err(wrong(format!(
            "more than {} keys, or {} bytes",
            count(KEYS_MAX),
            output::count(FILE_MAX)
        )));
    }
    Ok(merged(keys))
}

/// Parses a key and its number of accesses.
fn parse_line(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace();
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    let key = number(words.next()?)?;
    let accesses = words.next().map_or(Some(1), number)?;
    words.next().is_none().then_some((key, accesses))
}

fn count(n: usize) -> String {
    output::count(u64::try_from(n).unwrap_or(u64::MAX))
}
