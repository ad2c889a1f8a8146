//! The rows of `soda.step` and `soda.adaptive.regret`: DPU processes with different settings on the same
//! graph.

use super::far::{Placed, node_memory};
use super::subject::Subject;
use super::system::{self, System};
use super::work::App;
use super::{Sizes, settings};
use crate::Racks;
use crate::{Plan, Row, Samples, Sheet};
use farmem::{Client, Error, LinkProfile};
use farmem_graph::generate::RATIOS;

/// Threads of an application: several wait for pages at once.
const THREADS: usize = 4;
/// The graph's ratio of edges to vertices: the paper's friendster.
const GRAPH: usize = 1;

/// SODA's optimisations one by one, on its base (figure 11).
const STEPS: [(&str, System, &str); 8] = [
    ("base", System::Process, "caching = \"off\"\nbatch = 1\nforward = \"blocking\"\n"),
    ("aggregation", System::Process, "caching = \"off\"\nbatch = 64\nforward = \"blocking\"\n"),
    ("async", System::Process, "caching = \"off\"\nbatch = 1\nforward = \"async\"\n"),
    ("threads", System::Process, "caching = \"off\"\nbatch = 1\nforward = \"async\"\nthreads = 2\n"),
    ("slow4", System::Process, "caching = \"off\"\nbatch = 1\nforward = \"blocking\"\nslowdown = 4.0\n"),
    ("static", System::ProcessStatic, "caching = \"off\"\nbatch = 1\nforward = \"blocking\"\n"),
    ("dynamic", System::ProcessAdaptive, "caching = \"dynamic\"\nbatch = 1\nforward = \"blocking\"\n"),
    ("all", System::ProcessAdaptive, "caching = \"adaptive\"\nbatch = 64\nforward = \"async\"\n"),
];

/// The uses of a DPU's table; the first two are fixed.
const MODES: [&str; 3] = ["off", "dynamic", "adaptive"];
/// Megabits per second of the link between host and DPU, and of the network: slow enough that links, not this
/// machine, dominate the time.
const INTRA: u64 = 4_000;
const NET: [(&str, u64); 3] = [("33", 1_320), ("50", 2_000), ("80", 3_200)];

/// Measures the rows that `plan` selects.
pub(super) fn rows<R: Racks>(
    plan: &Plan,
    sizes: &Sizes,
    racks: &mut R,
    sheet: &mut Sheet<'_>,
) -> Result<(), R::Failure> {
    if !plan.wants("soda.step.") && !plan.wants("soda.adaptive.regret.") {
        return Ok(());
    }
    sheet.begins("a graph for DPUs of several settings");
    let subject = Subject::make(RATIOS[GRAPH], sizes.scales[GRAPH], sizes.pagerank)?;
    if plan.wants("soda.step.") {
        let steps = STEPS.map(|(name, system, more)| (name, system, more.to_owned()));
        let apps = App::ALL.map(|app| (format!("soda.step.{}", app.name()), app));
        let apps: Vec<_> = apps.into_iter().filter(|(id, _)| plan.wants(&format!("{id}."))).collect();
        let taken = compare(&subject, sizes, racks, LinkProfile::NONE, &steps, &apps, sheet)?;
        for ((id, _), systems) in apps.iter().zip(&taken) {
            let base = &systems[0].times;
            for (step, taken) in STEPS.iter().zip(systems) {
                sheet.add([taken.row(&format!("{id}.{}", step.0), base)]);
            }
        }
    }
    for (ratio, rate) in NET {
        let apps = [App::Bfs, App::Pagerank, App::Components];
        let apps = apps.map(|app| (format!("soda.adaptive.regret.{ratio}.{}", app.name()), app));
        let apps: Vec<_> = apps.into_iter().filter(|(id, _)| plan.wants(id)).collect();
        if apps.is_empty() {
            continue;
        }
        let link = format!("rate={rate}Mbit/s,delay=5us").parse().expect("it is a profile");
        let mode = |mode| {
            let more = format!("caching = \"{mode}\"\nlink = \"rate={INTRA}Mbit/s,delay=2us\"\n");
            (mode, System::ProcessAdaptive, more)
        };
        let taken = compare(&subject, sizes, racks, link, &MODES.map(mode), &apps, sheet)?;
        for ((id, _), systems) in apps.iter().zip(&taken) {
            let [off, dynamic, adaptive] = &systems[..] else { unreachable!("three modes") };
            let best = if dynamic.times.median() < off.times.median() { dynamic } else { off };
            for (mode, taken) in MODES.iter().zip([off, dynamic]) {
                sheet.add([taken.row(&format!("{id}.{mode}"), &off.times)]);
            }
            sheet.add([adaptive.row(id, &best.times)]);
        }
    }
    Ok(())
}

/// The times of an application through one DPU.
struct DpuTimes {
    times: Samples,
    how: Option<String>,
    why: Option<String>,
}

impl DpuTimes {
    fn row(&self, id: &str, beside: &Samples) -> Row {
        match &self.why {
            Some(why) => Row::absent(id, "ns", why.clone()),
            None => Row { why: self.how.clone(), ..self.times.row(id, Some(beside)) },
        }
    }
}

/// Measures each application through each DPU in alternation: all racks run at once, and one works.
fn compare<R: Racks>(
    subject: &Subject,
    sizes: &Sizes,
    racks: &mut R,
    link: LinkProfile,
    dpus: &[(&str, System, String)],
    apps: &[(String, App)],
    sheet: &mut Sheet<'_>,
) -> Result<Vec<Vec<DpuTimes>>, R::Failure> {
    let mut started = Vec::new();
    for (name, system, more) in dpus {
        sheet.begins(&format!("a rack whose DPU is {name}"));
        let dpu = system::process(subject.image, sizes.pages, more);
        let rack = racks.start_over(link, 1, node_memory(subject.image), &dpu)?;
        let client = rack.as_ref().client("soda")?;
        started.push((rack, client, *system));
    }
    let how: Vec<_> = started.iter().map(|(rack, _, system)| settings(rack.as_ref(), *system)).collect();
    let mut clients: Vec<(&mut Client, System)> =
        started.iter_mut().map(|(_, client, system)| (client, *system)).collect();
    let mut placed = Vec::new();
    for (client, system) in &mut clients {
        placed.push((Placed::new(client, subject)?, *system));
    }
    let mut all = Vec::new();
    for (id, app) in apps {
        let (work, right) = subject.work(*app)?;
        let new = |how: &Option<String>| DpuTimes { times: Samples::new(), how: how.clone(), why: None };
        let mut taken: Vec<DpuTimes> = how.iter().map(new).collect();
        for _ in 0..sizes.rounds {
            for (((placed, system), taken), (name, ..)) in placed.iter_mut().zip(&mut taken).zip(dpus) {
                sheet.begins(&format!("{id} {name}"));
                let options = system.options(subject.image, subject.vertices, sizes.pages);
                match placed.run_on(THREADS, options.expect("a window"), &work) {
                    Ok(run) => {
                        taken.times.record(run.time);
                        sheet.add_wrong(u64::from(run.values != right));
                    }
                    Err(Error::Open(refused)) => taken.why = Some(format!("skipped: {refused}")),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        all.push(taken);
    }
    Ok(all)
}
