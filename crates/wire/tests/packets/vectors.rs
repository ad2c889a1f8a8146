//! Packets that scapy built, in testdata/vectors: farmem must read the fields that scapy set, emit the same
//! bytes, compute the same ICRC, and refuse invalid packets for the stated reason.

use crate::vector_file::{Vector, fields, message, open, read};
use farmem_wire::{Extension, KeyedFrame, Packet, WireError, icrc};
use std::collections::BTreeMap;
use std::path::Path;

/// Returns every vector with its location.
fn vectors() -> Vec<(String, Vector)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/vectors");
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut vectors = vec![];
    for path in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "hex")) {
        let name = path.file_name().unwrap().to_string_lossy();
        for vector in read(&std::fs::read_to_string(path).unwrap()) {
            vectors.push((format!("{name}:{}", vector.line), vector));
        }
    }
    vectors
}

/// Acts as a receiver: ICRC, packet, message.
fn receive(bytes: &[u8]) -> Result<(icrc::Route, &[u8], Packet<'_>), WireError> {
    let (route, sealed) = open(bytes);
    let frame = icrc::check(&route, sealed)?;
    // The link to a switch knows which frames have a temporary header (PROTOCOL 15.11); its receiver parses
    // behind the header.
    let packet = if KeyedFrame::is(frame) {
        Packet::parse(KeyedFrame::parse(frame)?.read)?
    } else {
        Packet::parse(frame)?
    };
    if let Some(message) = message(&packet) {
        message?;
    }
    Ok((route, frame, packet))
}

#[test]
fn each_packet_is_understood_or_refused_as_its_file_says() {
    for (place, vector) in vectors() {
        match receive(&vector.bytes) {
            Ok((route, frame, packet)) => {
                assert!(vector.verdict == "ok" || vector.verdict == "masked", "{place} was not refused");
                assert_eq!(fields(&route, frame, &packet), vector.fields, "{place}");
            }
            Err(error) => assert_eq!(error.to_string(), vector.verdict, "{place}"),
        }
    }
}

#[test]
fn each_packet_is_written_again_as_scapy_wrote_it() {
    for (place, vector) in vectors() {
        let Ok((route, frame, packet)) = receive(&vector.bytes) else { continue };
        let mut written = vec![];
        packet.emit(&mut written);
        if let Ok(KeyedFrame { read, keyed, .. }) = KeyedFrame::parse(frame) {
            assert_eq!(written, read, "{place}");
            written.clear();
            KeyedFrame::emit(read, &keyed, &mut written);
        }
        if vector.verdict == "masked" {
            assert_ne!(written, frame, "{place} has no bit that farmem would send otherwise");
            assert_eq!(written, without_masked_bits(frame, &packet), "{place}");
            continue;
        }
        icrc::seal(&route, &mut written, 0);
        assert_eq!(written, open(&vector.bytes).1, "{place}");
        if let Some(message) = message(&packet) {
            let mut payload = vec![];
            message.unwrap().emit(&mut payload);
            assert_eq!(payload, packet.payload, "{place}");
        }
    }
}

/// Returns the frame with the bits that receivers ignore as farmem sends them: MigReq 1, byte 4 zero, no
/// credits (PROTOCOL 2.2, 2.5).
fn without_masked_bits(frame: &[u8], packet: &Packet<'_>) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[1] |= 0x40;
    frame[4] = 0;
    if let Extension::Aeth(aeth) | Extension::AtomicAck(aeth, _) = packet.ext {
        frame[farmem_wire::bth::LEN] = aeth.syndrome.bits();
    }
    frame
}

/// A UDP socket does not show the identification; the check finds it (PROTOCOL 2.10).
#[test]
fn each_identification_is_found_from_the_icrc() {
    let mut found = vec![];
    for (place, vector) in vectors() {
        let Ok((route, frame, _)) = receive(&vector.bytes) else { continue };
        let blind = icrc::Route { ip_id: 0, ..route };
        assert_eq!(icrc::check_any_id(&blind, open(&vector.bytes).1), Ok((frame, route.ip_id)), "{place}");
        found.push(route.ip_id);
    }
    for ip_id in [0, 2, 0xbeef, 0xffff] {
        assert!(found.contains(&ip_id), "no vector has identification {ip_id:#x}");
    }
}

/// The vectors must stay complete: each opcode at least once, both kinds of address, every family.
#[test]
fn the_vectors_show_every_opcode_and_every_family() {
    let mut opcodes = BTreeMap::new();
    let mut files = BTreeMap::new();
    for (place, vector) in vectors() {
        *files.entry(place.split(':').next().unwrap().to_owned()).or_insert(0) += 1;
        if let Ok((route, _, packet)) = receive(&vector.bytes) {
            let v6 = route.src.as_v4().is_none();
            opcodes.entry(packet.bth.opcode as u8).or_insert_with(Vec::new).push(v6);
        }
    }
    let spoken: Vec<u8> = (0..=0x14).chain([0x64, 0x65, 0xcc]).collect();
    assert_eq!(opcodes.keys().copied().collect::<Vec<_>>(), spoken);
    assert!(opcodes.values().flatten().any(|&v6| v6));
    let families = "ack atomic foreign gather keyed messages read refused send ud write";
    let names: Vec<String> = families.split(' ').map(|name| format!("{name}.hex")).collect();
    assert_eq!(files.keys().cloned().collect::<Vec<_>>(), names);
}
