//! Far memory that lets somebody look before and after each write.

use farmem::{Error, FarMemory, NodeId, VirtAddr, Vma, api};

/// A writer's far memory; `look` is called beside each of its writes.
pub(crate) struct Beside<'a> {
    memory: &'a mut dyn FarMemory,
    look: &'a mut dyn FnMut(),
}

impl<'a> Beside<'a> {
    pub(crate) fn new(memory: &'a mut dyn FarMemory, look: &'a mut dyn FnMut()) -> Self {
        Self { memory, look }
    }
}

impl FarMemory for Beside<'_> {
    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        self.memory.read(addr, into)
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        (self.look)();
        let written = self.memory.write(addr, data);
        (self.look)();
        written
    }

    fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        self.memory.compare_swap(addr, compare, swap)
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error> {
        self.memory.fetch_add(addr, add)
    }

    fn allocate(&mut self, size: u64) -> Result<Vma, Error> {
        self.memory.allocate(size)
    }

    fn allocate_on(&mut self, size: u64, node: NodeId) -> Result<Vma, Error> {
        self.memory.allocate_on(size, node)
    }

    fn free(&mut self, base: VirtAddr) -> Result<(), Error> {
        self.memory.free(base)
    }

    fn nodes(&self) -> &[api::NodeInfo] {
        self.memory.nodes()
    }
}
