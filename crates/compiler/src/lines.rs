//! Source lines of instructions, by the object's DWARF line table. Lookups find nothing in an object without
//! one.

use crate::elf::Elf;
use crate::error::Line;
use addr2line::gimli::{DwarfSections, EndianSlice, LittleEndian, SectionId};
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, RelocationTarget, SectionIndex,
};
use std::convert::Infallible;

/// Relocations of BPF debug sections: a word of 64 or 32 bits, and one of 32 bits that loaders ignore.
const R_BPF_64_ABS64: u32 = 2;
const R_BPF_64_ABS32: u32 = 3;
const R_BPF_64_NODYLD32: u32 = 4;

/// The header whose functions are inlined into iterators: errors name the line that uses them.
const HEADER: &str = "farmem/iterator.h";

/// The debug sections of an object, relocated.
pub(crate) struct Sections(DwarfSections<Vec<u8>>);

/// The line table of an object.
pub(crate) struct Lines<'a> {
    context: Option<addr2line::Context<EndianSlice<'a, LittleEndian>>>,
}

impl Sections {
    /// Copies the sections from an object.
    pub(crate) fn of(elf: &Elf<'_>) -> Self {
        let Ok(sections) = DwarfSections::load(|id| Ok::<_, Infallible>(section(elf, id)));
        Self(sections)
    }
}

impl<'a> Lines<'a> {
    /// Parses the sections.
    pub(crate) fn of(sections: &'a Sections) -> Self {
        let dwarf = sections.0.borrow(|section| EndianSlice::new(section, LittleEndian));
        Self { context: addr2line::Context::from_dwarf(dwarf).ok() }
    }

    /// Returns the line at a byte of a section: in the author's file, not in the header.
    pub(crate) fn find(&self, section: SectionIndex, at: u64) -> Option<Line> {
        let context = self.context.as_ref()?;
        let probe = base(section).wrapping_add(at);
        let mut frames = context.find_frames(probe).skip_all_loads().ok()?;
        let mut found = None;
        while let Ok(Some(frame)) = frames.next() {
            let Some(location) = frame.location else { continue };
            let (Some(file), Some(number)) = (location.file, location.line.filter(|&line| line > 0)) else {
                continue;
            };
            let line = Line { file: file.trim_start_matches("./").to_owned(), number };
            let of_author = !file.ends_with(HEADER);
            found = Some(line);
            if of_author {
                break;
            }
        }
        found
    }
}

/// Returns a base address for a section. All sections of an object begin at 0, so each gets a separate base.
fn base(section: SectionIndex) -> u64 {
    (section.0 as u64) << 32
}

/// Returns a debug section with its relocations applied; empty if there is none.
fn section(elf: &Elf<'_>, id: SectionId) -> Vec<u8> {
    let Some(section) = elf.section_by_name(id.name()) else { return Vec::new() };
    let mut data = section.uncompressed_data().map(|data| data.into_owned()).unwrap_or_default();
    for (at, relocation) in section.relocations() {
        let RelocationTarget::Symbol(index) = relocation.target() else { continue };
        let Ok(symbol) = elf.symbol_by_index(index) else { continue };
        let in_code = symbol.section_index().filter(|&index| is_code(elf, index));
        let value = symbol.address().wrapping_add(in_code.map_or(0, base));
        let RelocationFlags::Elf { r_type, .. } = relocation.flags() else { continue };
        let Some(place) = usize::try_from(at).ok().and_then(|at| data.get_mut(at..)) else { continue };
        match r_type.0 {
            R_BPF_64_ABS64 => {
                let Some(word) = place.first_chunk_mut() else { continue };
                *word = u64::from_le_bytes(*word).wrapping_add(value).to_le_bytes();
            }
            R_BPF_64_ABS32 | R_BPF_64_NODYLD32 => {
                let Some(word) = place.first_chunk_mut() else { continue };
                let [v0, v1, v2, v3, ..] = value.to_le_bytes();
                *word = u32::from_le_bytes(*word)
                    .wrapping_add(u32::from_le_bytes([v0, v1, v2, v3]))
                    .to_le_bytes();
            }
            _ => {}
        }
    }
    data
}

fn is_code(elf: &Elf<'_>, index: SectionIndex) -> bool {
    elf.section_by_index(index).is_ok_and(|section| section.kind() == object::SectionKind::Text)
}
