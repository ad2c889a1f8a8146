//! Far memory that lets a test observe the state before and after each write.

use farmem_client::{Error, FarMemory, VirtAddr, forward_far_memory};

/// A writer's far memory. `look` is called before and after each write.
pub struct ObservedMemory<'a> {
    memory: &'a mut dyn FarMemory,
    look: &'a mut dyn FnMut(),
}

impl<'a> ObservedMemory<'a> {
    /// Wraps a writer's far memory.
    pub fn new(memory: &'a mut dyn FarMemory, look: &'a mut dyn FnMut()) -> Self {
        Self { memory, look }
    }
}

impl FarMemory for ObservedMemory<'_> {
    forward_far_memory!(memory: read, compare_swap, fetch_add, allocate, allocate_on, free, nodes);

    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        (self.look)();
        let written = self.memory.write(addr, data);
        (self.look)();
        written
    }
}
