//! The object file of clang: its iterators, their references, and the sizes of their structures.
//!
//! An iterator is a function in a section `farmem/NAME`. cpp/include/farmem/iterator.h places it there, and
//! the sizes of its node and scratch pad in `.farmem/NAME`. The file is untrusted: any inconsistency is an
//! error.

use crate::CompileError;
use object::read::elf::ElfFile64;
use object::{
    Architecture, LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget,
};
use std::collections::BTreeMap;

pub(crate) type Elf<'a> = ElfFile64<'a, LittleEndian>;

/// Prefix of the sections of iterators.
const CODE: &str = "farmem/";
/// Prefix of the sections with their sizes.
const NOTE: &str = ".farmem/";
/// Supported versions of the note: sizes, and sizes with flags.
const NOTE_SIZES: u32 = 1;
const NOTE_FLAGS: u32 = 2;
/// Flag: the iterator stores to its node.
const STORES: u32 = 1;

/// One iterator of an object.
pub(crate) struct Iterator<'a> {
    pub(crate) name: String,
    /// The instructions, 8 bytes each.
    pub(crate) code: &'a [[u8; 8]],
    /// Names that instructions refer to, by instruction number.
    pub(crate) references: BTreeMap<usize, String>,
    pub(crate) sizes: Option<Sizes>,
    /// The section, and the offset of the code in it.
    pub(crate) section: object::SectionIndex,
    pub(crate) start: u64,
}

/// Declared sizes of the structures, and whether the node is stored to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    pub(crate) window: usize,
    pub(crate) scratch: usize,
    pub(crate) stores: bool,
}

/// Parses a BPF object.
pub(crate) fn parse(bytes: &[u8]) -> Result<Elf<'_>, CompileError> {
    let elf = Elf::parse(bytes).map_err(refuse)?;
    if elf.architecture() != Architecture::Bpf {
        return Err(CompileError::Object(format!("it is for {:?}", elf.architecture())));
    }
    Ok(elf)
}

fn refuse(why: object::Error) -> CompileError {
    CompileError::Object(why.to_string())
}

/// Returns the names of all iterators, in the order of the symbol table.
pub(crate) fn names(elf: &Elf<'_>) -> Vec<String> {
    symbols(elf).filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect()
}

/// Returns the functions in sections of iterators.
fn symbols<'e>(
    elf: &'e Elf<'_>,
) -> impl core::iter::Iterator<Item = object::read::elf::ElfSymbol64<'e, 'e, LittleEndian>> {
    elf.symbols().filter(|symbol| {
        let section = symbol.section_index().and_then(|index| elf.section_by_index(index).ok());
        symbol.kind() == object::SymbolKind::Text
            && section.is_some_and(|section| section.name().is_ok_and(|name| name.starts_with(CODE)))
    })
}

/// Returns the iterator of this name, or the only one.
pub(crate) fn iterator<'a>(elf: &Elf<'a>, wanted: Option<&str>) -> Result<Iterator<'a>, CompileError> {
    let have = names(elf);
    let name = match (wanted, have.as_slice()) {
        (_, []) => return Err(CompileError::NoIterator),
        (None, [only]) => only.clone(),
        (None, _) => return Err(CompileError::Several(have)),
        (Some(wanted), _) if have.iter().any(|name| name == wanted) => wanted.to_owned(),
        (Some(wanted), _) => return Err(CompileError::Unknown { wanted: wanted.to_owned(), have }),
    };
    let symbol = symbols(elf).find(|symbol| symbol.name() == Ok(&name)).expect("its name was just listed");
    let index = symbol.section_index().expect("symbols of iterators have a section");
    let section = elf.section_by_index(index).map_err(refuse)?;
    let (start, size) = (symbol.address(), symbol.size());
    let inside = |data: &'a [u8]| {
        let from = usize::try_from(start).ok()?;
        data.get(from..from.checked_add(usize::try_from(size).ok()?)?)
    };
    let code = inside(section.data().map_err(refuse)?)
        .ok_or_else(|| CompileError::Object(format!("{name} leaves its section")))?;
    let (code, rest) = code.as_chunks::<8>();
    if code.is_empty() || !rest.is_empty() || start % 8 != 0 {
        return Err(CompileError::Object(format!("{name} is not made of instructions of 8 bytes")));
    }
    let mut references = BTreeMap::new();
    for (at, relocation) in section.relocations() {
        let Some(at) = at.checked_sub(start).and_then(|at| usize::try_from(at / 8).ok()) else { continue };
        // Relocations of BPF code have no addend of their own; it is in the instruction.
        let addend =
            code.get(at).map_or(0, |&[_, _, _, _, i0, i1, i2, i3]| u32::from_le_bytes([i0, i1, i2, i3]));
        references.insert(at, target(elf, &relocation, u64::from(addend)));
    }
    let sizes = sizes(elf, &name)?;
    Ok(Iterator { name, code, references, sizes, section: index, start })
}

/// Prefix for the name of an unnamed symbol; the name of its section follows.
pub(crate) const IN_SECTION: &str = "in section ";

/// Returns the name of a relocation's target, `addend` bytes behind its symbol.
fn target(elf: &Elf<'_>, relocation: &object::Relocation, addend: u64) -> String {
    let RelocationTarget::Symbol(index) = relocation.target() else { return "something unnamed".into() };
    let symbol = elf.symbol_by_index(index).ok();
    let own = symbol.as_ref().and_then(|symbol| symbol.name().ok()).filter(|name| !name.is_empty());
    let section = || {
        let index = symbol.as_ref()?.section_index()?;
        let holds = |data: &object::read::elf::ElfSymbol64<'_, '_, LittleEndian>| {
            data.section_index() == Some(index)
                && data.kind() == object::SymbolKind::Data
                && addend.checked_sub(data.address()).is_some_and(|at| at < data.size())
        };
        let variable = elf.symbols().find(holds).and_then(|data| data.name().ok().map(str::to_owned));
        let section = elf.section_by_index(index).ok()?.name().ok().map(|name| format!("{IN_SECTION}{name}"));
        variable.or(section)
    };
    own.map(str::to_owned).or_else(section).unwrap_or_else(|| "something unnamed".into())
}

/// Returns the sizes that the header recorded.
fn sizes(elf: &Elf<'_>, name: &str) -> Result<Option<Sizes>, CompileError> {
    let Some(section) = elf.section_by_name(&format!("{NOTE}{name}")) else { return Ok(None) };
    let data = section.data().map_err(refuse)?;
    let word = |at: usize| {
        let bytes = data.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let flags = match word(0) {
        Some(NOTE_SIZES) => Some(0),
        Some(NOTE_FLAGS) => word(12).filter(|flags| flags & !STORES == 0),
        _ => None,
    };
    let (Some(flags), Some(window), Some(scratch)) = (flags, word(4), word(8)) else {
        return Err(CompileError::Object(format!(
            "{name} was declared by another version of farmem/iterator.h: compile it again"
        )));
    };
    let bytes = |size| usize::try_from(size).unwrap_or(usize::MAX);
    Ok(Some(Sizes { window: bytes(window), scratch: bytes(scratch), stores: flags & STORES != 0 }))
}
