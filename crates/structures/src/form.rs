//! Descriptions of structures for another process: location and layout, so that a DPU can look up keys for a
//! program (PROTOCOL 19.15).
//!
//! Key types: [`Form`], the description; [`look_up`], which opens the structure of a form. The sender of a
//! form may be hostile. Every value is checked against the memory nodes, and the error names the first
//! invalid one. The reader reads in its own domain, so a form gives no access that the domain lacks: a table
//! is opened by its name, as by any program of the domain.
//!
//! A form does not prove what lies in the memory. A form of other memory finds nothing, or nonsense, for its
//! sender.

mod description;

pub use description::{Form, Shard};
pub(crate) use description::{allocations, refused, within};

use crate::table::TableLookUp;
use crate::{FlatMap, HashTable, PageStore};
use farmem_client::{Client, Error, LookUp};
use serde::Deserialize as _;

/// Opens the structure of a form for the client that reads it. A DPU process is started with such a form.
///
/// # Errors
/// [`Error::Refused`] with the first invalid value; for a table, the errors of
/// [`Heap::open`](crate::Heap::open) and [`Table::open`](crate::Table::open).
pub fn look_up(form: &serde_json::Value, client: &mut Client) -> Result<Box<dyn LookUp + Send>, Error> {
    match Form::deserialize(form).map_err(|error| refused(error.to_string()))? {
        Form::FlatMap { shards, homes, value_len, secret } => {
            Ok(Box::new(FlatMap::of(&*client, &shards, (homes, value_len), secret)?))
        }
        Form::HashTable { shards, buckets } => Ok(Box::new(HashTable::of(&*client, &shards, buckets)?)),
        Form::PageStore { shards, pages } => Ok(Box::new(PageStore::of(&*client, &shards, pages)?)),
        Form::Table { heap, table } => Ok(Box::new(TableLookUp::open(client, &heap, &table)?)),
    }
}
