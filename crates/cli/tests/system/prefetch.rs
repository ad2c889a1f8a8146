//! Tests of prefetches by the DPU of a rack that `farmem up` started (PD3; PROTOCOL 19.15 to 19.18).

use crate::faults::{kill, serves_again};
use crate::map_program::{MapProgram, SECRET, map_of, options, settle};
use crate::process::eventually;
use crate::rack::{Description, Up, text};
use farmem::FlatMap;
use farmem::prefetch::{AtDpu, Change};

/// DPU of the rack, with its socket beside the description.
const DPU: &str = "[dpu]\nsocket = \"dpu/socket\"\n";

/// Returns the process id of a role.
fn process(up: &Up<'_>, role: &str) -> u32 {
    let (_, pid) = up.roles().into_iter().find(|(name, _)| name == role).expect("it is a role");
    pid
}

/// Two programs in two domains, each with its own map, request the same keys. Each finds its items in its own
/// zone, as the counts of the DPU process show. No answer is wrong, and the process has one thread per
/// program.
#[test]
fn items_come_from_the_process_of_the_rack() {
    for transport in ["udp", "shm"] {
        let description = Description::new("prefetches", transport).with(DPU);
        let mut up = description.up();
        let of_dpu = process(&up, "dpu");
        let begin = |domain: &str, seed: u64| {
            let mut client = description.client(domain);
            let map = map_of(&mut client, [5, seed]);
            let dpu = AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options()).unwrap();
            let program = MapProgram::at(&dpu, client, map, seed);
            (dpu, program)
        };
        let mut both = [begin("one", 1), begin("other", 2)];
        assert_eq!(threads(of_dpu), 2);
        for _ in 0..150 {
            for (dpu, program) in &mut both {
                program.batch(16, |program| {
                    settle(dpu, program.pieces);
                });
            }
        }
        for (dpu, program) in both {
            let all = settle(&dpu, program.pieces);
            assert_eq!((all.account.used, all.seen.pieces), (program.taken, 150), "{all:?}");
            assert_eq!((all.seen.lost_bytes, program.tap.unseen(), program.beside.unheard()), (0, (0, 0), 0));
            let MapProgram { taken, asked, .. } = program;
            // Half of the keys do not exist, and the program reads these itself.
            assert!(
                taken > 500 && taken * 2 > asked,
                "{taken} items came from the zone, {asked} it asked for"
            );
        }
        eventually("the programs have gone", || threads(of_dpu) == 0);
        assert!(up.is_whole(), "all roles are alive");
        assert_eq!(up.stop().stderr, "", "and had nothing to say");
    }
}

/// The DPU is killed while items lie in the zone. The program takes no further items and reads by itself,
/// with right answers. After `farmem up` has restarted the DPU, the program connects when it chooses, its
/// changes continue, and items arrive again.
#[test]
fn a_dpu_that_dies_and_is_started_again_costs_speed_only() {
    for transport in ["udp", "shm"] {
        let description = Description::new("dies-dpu", transport).with(DPU);
        let mut up = description.up();
        let mut client = description.client("worker");
        let map = map_of(&mut client, [5, 6]);
        let dpu = AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options()).unwrap();
        let mut program = MapProgram::at(&dpu, client, map, 21);
        let prefetched = |program: &mut MapProgram<FlatMap>, dpu: &AtDpu| {
            for _ in 0..50 {
                program.batch(8, |program| {
                    settle(dpu, program.pieces);
                });
            }
        };
        prefetched(&mut program, &dpu);
        assert!(program.taken > 50);
        let mut pid = 0;
        program.batch(8, |program| {
            settle(&dpu, program.pieces);
            pid = kill(&up, "dpu");
        });
        eventually("the program notices", || {
            program.batch(8, |_| ());
            !dpu.is_served()
        });
        let (taken, asked) = (program.taken, program.asked);
        let died = serves_again(&mut up, "dpu", pid);
        assert!(
            text(&died["text"]).contains("go on straight to the memory nodes, and nothing is lost"),
            "{died}"
        );
        for _ in 0..50 {
            program.batch(8, |_| ());
        }
        assert!(program.taken == taken && program.asked > asked + 50, "it reads by itself");
        let next = dpu.again(&program.client).unwrap();
        program.goes_to(&next);
        prefetched(&mut program, &next);
        assert!(program.taken > taken + 50, "{} then, {taken} before", program.taken);
        drop((next, dpu, program));
        assert!(up.is_whole(), "all roles are alive");
        assert_eq!(up.stop().code, Some(0));
    }
}

/// Returns the number of threads that prefetch for programs.
fn threads(process: u32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("dpu ahead")).count()
}
