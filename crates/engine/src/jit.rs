//! Verified programs as machine code, compiled by Cranelift and cached by name.
//!
//! The code of one iteration gets a window, a scratch pad and `cur_ptr`, and does what the interpreter does.
//! The code accesses no other memory: the verifier proved constant accesses inside their areas, and the code
//! checks indexed ones. Pages are writable while they are filled and executable afterwards, never both. The
//! last [`Compiled`] that runs them frees them, so a program can be evicted while it runs.

mod translate;

use cranelift_codegen::ir::{AbiParam, Signature, types};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{CodegenError, Context};
use cranelift_frontend::FunctionBuilderContext;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module, ModuleError, default_libcall_names};
use farmem_traversal::{Program, Step};
use farmem_wire::{ProgramHash, VirtAddr};
use std::collections::BTreeMap;
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;

/// The result of an iteration's code: two words, in two registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Exit {
    /// After [`Exit::NEXT`] the pointer to load next, else the unchanged `cur_ptr`.
    cur_ptr: u64,
    /// [`Exit::NEXT`], [`Exit::RETURN`] or [`Exit::FAULT`].
    how: u64,
}

impl Exit {
    const NEXT: u64 = 0;
    const RETURN: u64 = 1;
    const FAULT: u64 = 2;
}

/// The code of one iteration: window, scratch pad, `cur_ptr`.
///
/// # Safety
/// The caller guarantees three things. The first pointer refers to as many readable bytes as the program's
/// window; if the program stores, they are writable and no other code uses them. The second refers to as many
/// bytes as the scratch pad, which no other code uses. The [`Compiled`] that owns the function is alive.
type Code = unsafe extern "C" fn(*const u8, *mut u8, u64) -> Exit;

/// The reason why a program was not compiled. The interpreter still runs it.
#[derive(Debug)]
pub enum JitError {
    /// Cranelift does not support this machine.
    Machine(&'static str),
    /// Cranelift refused the program, or the system gave no memory.
    Program(Box<ModuleError>),
}

impl fmt::Display for JitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine(why) => write!(f, "programs cannot be compiled for this machine: {why}"),
            Self::Program(why) => write!(f, "the program could not be compiled: {why}"),
        }
    }
}

impl std::error::Error for JitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Machine(_) => None,
            Self::Program(why) => Some(why),
        }
    }
}

impl From<ModuleError> for JitError {
    fn from(why: ModuleError) -> Self {
        Self::Program(Box::new(why))
    }
}

/// The compiler, and a cache of compiled programs by name.
pub struct Jit {
    isa: OwnedTargetIsa,
    context: Context,
    builder: FunctionBuilderContext,
    programs_max: usize,
    kept: BTreeMap<ProgramHash, CacheEntry>,
    /// Use counter, for the order of last uses.
    clock: u64,
}

struct CacheEntry {
    compiled: Arc<Compiled>,
    used: u64,
}

impl fmt::Debug for Jit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jit")
            .field("programs", &self.kept.len())
            .field("programs_max", &self.programs_max)
            .finish_non_exhaustive()
    }
}

impl Jit {
    /// Creates a compiler for this machine that caches up to `programs_max` programs.
    ///
    /// # Errors
    /// [`JitError::Machine`] if the machine is not supported.
    ///
    /// # Panics
    /// If `programs_max` is 0.
    pub fn new(programs_max: usize) -> Result<Self, JitError> {
        assert!(programs_max > 0, "a cache has room for a program");
        let mut flags = settings::builder();
        // cranelift-jit requires the first two. The IR is verified in builds with assertions; a frame of 128
        // bytes needs no probing.
        for (name, value) in [
            ("is_pic", "false"),
            ("use_colocated_libcalls", "false"),
            ("opt_level", "speed"),
            ("unwind_info", "false"),
            ("enable_probestack", "false"),
            ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
        ] {
            flags.set(name, value).expect("a setting of the pinned version");
        }
        let machine = cranelift_native::builder().map_err(JitError::Machine)?;
        let isa = machine
            .finish(settings::Flags::new(flags))
            .map_err(|why| JitError::from(ModuleError::Compilation(why)))?;
        let context = Context::new();
        let builder = FunctionBuilderContext::new();
        Ok(Self { isa, context, builder, programs_max, kept: BTreeMap::new(), clock: 0 })
    }

    /// Returns the compiled program: from the cache, or compiled now, which evicts the least recently used
    /// one.
    ///
    /// # Errors
    /// [`JitError::Program`]; nothing is evicted then.
    pub fn compile(&mut self, program: &Program) -> Result<Arc<Compiled>, JitError> {
        self.clock += 1;
        if let Some(kept) = self.kept.get_mut(&program.hash())
            // The name is half a SHA-256: if a peer finds two programs with one name, it must not get one for
            // the other.
            && kept.compiled.program == *program
        {
            kept.used = self.clock;
            return Ok(Arc::clone(&kept.compiled));
        }
        let compiled = Arc::new(self.make(program)?);
        let kept = CacheEntry { compiled: Arc::clone(&compiled), used: self.clock };
        self.kept.insert(program.hash(), kept);
        if self.kept.len() > self.programs_max {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(hash, _)| *hash);
            self.kept.remove(&oldest.expect("there are more than none"));
        }
        Ok(compiled)
    }

    /// Returns the number of cached programs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Returns true if no program is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Compiles the program for a caller that stores it: without the shared pointer, its code is one
    /// indirection nearer.
    ///
    /// # Errors
    /// [`JitError::Program`].
    pub fn make(&mut self, program: &Program) -> Result<Compiled, JitError> {
        let mut module =
            Pages::new(JITModule::new(JITBuilder::with_isa(self.isa.clone(), default_libcall_names())));
        let mut signature = Signature::new(self.isa.default_call_conv());
        let pointer = self.isa.pointer_type();
        signature.params.extend([pointer, pointer, types::I64].map(AbiParam::new));
        signature.returns.extend([types::I64; 2].map(AbiParam::new));
        let iteration = module.0.declare_function("iteration", Linkage::Export, &signature)?;
        self.context.clear();
        self.context.func.signature = signature;
        translate::translate(program, &mut self.context.func, &mut self.builder, self.isa.frontend_config());
        module.0.define_function(iteration, &mut self.context)?;
        module.0.finalize_definitions()?;
        let code_len = self
            .context
            .compiled_code()
            .ok_or(ModuleError::Compilation(CodegenError::CodeTooLarge))?
            .code_buffer()
            .len();
        let start = module.0.get_finalized_function(iteration);
        // SAFETY: `start` is the entry of a function that was compiled with the signature of `Code` and the
        // calling convention of C.
        let code = unsafe { mem::transmute::<*const u8, Code>(start) };
        let len = |bytes: usize| u16::try_from(bytes).expect("bounded by a datagram");
        let shape = Shape {
            window_len: len(program.window_len()),
            scratch_len: len(program.scratch_len()),
            stores: program.stores(),
        };
        Ok(Compiled { code, shape, program: program.clone(), code_len, _pages: module })
    }
}

/// The pages of one program. Cranelift leaks them unless they are freed explicitly, because it cannot know
/// whether code in them still runs.
struct Pages(ManuallyDrop<JITModule>);

impl Pages {
    fn new(module: JITModule) -> Self {
        Self(ManuallyDrop::new(module))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: taken once, here; the field is not touched afterwards.
        let module = unsafe { ManuallyDrop::take(&mut self.0) };
        // SAFETY: The code is called only through a borrow of the `Compiled` that owns these pages, which is
        // being dropped.
        unsafe { module.free_memory() };
    }
}

/// The properties of a program that a run needs, in one place.
#[derive(Clone, Copy, Debug)]
struct Shape {
    window_len: u16,
    scratch_len: u16,
    stores: bool,
}

/// A program as machine code.
pub struct Compiled {
    code: Code,
    shape: Shape,
    program: Program,
    code_len: usize,
    _pages: Pages,
}

// SAFETY: Only the module in `_pages` is not `Sync`. Nothing uses it between the end of `Jit::make` and its
// drop, and it is `Send`. The code itself is read-only.
unsafe impl Sync for Compiled {}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled")
            .field("program", &self.program)
            .field("code_len", &self.code_len)
            .finish_non_exhaustive()
    }
}

impl Compiled {
    /// Returns the program that was compiled.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the bytes of machine code.
    #[must_use]
    pub const fn code_len(&self) -> usize {
        self.code_len
    }

    /// Runs one iteration over the loaded window, as [`Program::step`] does.
    ///
    /// # Panics
    /// If `window` or `scratch` does not have the program's lengths, or the program stores.
    #[inline]
    pub fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        assert!(!self.shape.stores, "a program that stores needs a window of its own");
        assert_eq!(window.len(), usize::from(self.shape.window_len), "the window is the program's");
        // SAFETY: the window has the program's length, by the assertion, and the program does not store to it.
        unsafe { self.iterate(window.as_ptr(), cur_ptr, scratch) }
    }

    /// Runs one iteration over a copy of the window that it may store to, as [`Program::step_storing`] does.
    ///
    /// # Panics
    /// If `window` or `scratch` does not have the program's lengths.
    pub fn step_storing(&self, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        assert_eq!(window.len(), usize::from(self.shape.window_len), "the window is the program's");
        // SAFETY: the window has the program's length, by the assertion, and is borrowed alone.
        unsafe { self.iterate(window.as_mut_ptr(), cur_ptr, scratch) }
    }

    /// Runs one iteration.
    ///
    /// # Safety
    /// The caller guarantees for `window` what [`Code`] requires.
    #[inline]
    unsafe fn iterate(&self, window: *const u8, cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        assert_eq!(scratch.len(), usize::from(self.shape.scratch_len), "the scratch pad is the program's");
        // SAFETY: The caller guarantees the window. The scratch pad has the program's length, by the
        // assertion, and is borrowed exclusively. The code lives as long as `self`.
        let exit = unsafe { (self.code)(window, scratch.as_mut_ptr(), cur_ptr.0) };
        cur_ptr.0 = exit.cur_ptr;
        match exit.how {
            Exit::NEXT => Step::Next,
            Exit::RETURN => Step::Return,
            how => {
                assert_eq!(how, Exit::FAULT, "an iteration ends in one of three ways");
                Step::Fault
            }
        }
    }
}

#[cfg(test)]
mod tests;
