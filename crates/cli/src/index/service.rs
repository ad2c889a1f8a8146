//! `farmem index serve`, `farmem index load` and `farmem index drop`: the service of an ordered store, the
//! load of a file, and the removal of a store.

use crate::args::{IndexDrop, IndexLoad, IndexServe};
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use crate::progress;
use farmem::{ClientOptions, Error, Rack};
use farmem_orderedkv::load::{Column, Format, Loaded, Source, Stage, load};
use farmem_orderedkv::{Access, Dropped, Server, Store, StoreError};
use farmem_workload::STOPPED;
use serde::Serialize;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn failed(error: StoreError) -> Failure {
    Failure::environment(error.to_string(), error.remedy())
}

const fn access(take_over: bool) -> Access {
    if take_over { Access::TakeOver } else { Access::Write }
}

/// Report of a server that listens.
#[derive(Serialize)]
struct Listening {
    address: SocketAddr,
    store: String,
    keys: &'static str,
    first_tree: String,
}

impl Report for Listening {
    fn text(&self) -> String {
        format!(
            "store {:?} at {}; keys are {}\nits first tree for an index agent: --root {}\n",
            self.store, self.address, self.keys, self.first_tree
        )
    }
}

/// Serves a store until Ctrl-C.
pub(crate) fn serve(args: &IndexServe) -> Result<End, Failure> {
    let server = Server::listen(args.listen).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AddrInUse => "name another port, or 0 for any (--listen 127.0.0.1:0)",
            _ => "name an address of this machine (--listen)",
        };
        Failure::environment(format!("cannot listen at {}: {error}", args.listen), remedy)
    })?;
    let address = server.address().map_err(|error| Failure::environment(format!("{error}"), ""))?;
    let stop = server.stopper();
    farmem_workload::on_terminate(move || stop.stop())
        .map_err(|error| Failure::environment(format!("cannot catch Ctrl-C: {error}"), ""))?;
    let mut client = Rack::open(&args.rack)?.client_with(&args.domain, ClientOptions::durable())?;
    let opened = if args.create {
        Store::create(&mut client, &args.store, args.key_type.kind(), access(args.take_over))
    } else {
        Store::open(&mut client, &args.store, Some(args.key_type.kind()), access(args.take_over))
    };
    let mut store = opened.map_err(|error| match &error {
        StoreError::Far(Error::Missing { .. }) => {
            let message = format!("domain {:?} has no store {:?}", args.domain, args.store);
            Failure::environment(message, "look at its name, or make a new one (--create)")
        }
        _ => failed(error),
    })?;
    let first_tree = format!("{:#x}", store.first().tree().address().0);
    let keys = store.kind().name();
    output::print(&Listening { address, store: args.store.clone(), keys, first_tree }, args.json);
    let served = server.serve(&mut store, &mut client, &mut |said| output::note(&format!("farmem: {said}")));
    // A fenced writer holds no lock. Closing would only wait for memory nodes that ignore this host.
    let commands = match served {
        Err(error @ StoreError::Fenced) => return Err(failed(error)),
        served => served.map_err(failed),
    };
    // The close releases the lock for the next writer.
    let closed = store.close(&mut client);
    let commands = commands?;
    closed?;
    output::note(&format!("farmem: {} requests served", output::count(commands)));
    Ok(End::Fine)
}

impl Report for Dropped {
    fn text(&self) -> String {
        match &self.lost {
            None => "dropped\n".to_owned(),
            Some(why) => format!(
                "dropped by its name; what could not be found of it stays allocated to the domain, since memory of it is lost: {why}\n"
            ),
        }
    }
}

/// Frees a store.
pub(crate) fn drop_store(args: &IndexDrop) -> Result<End, Failure> {
    if !args.yes {
        let message =
            format!("store {:?} of domain {:?} would be freed with all its keys", args.store, args.domain);
        return Err(Failure::environment(message, "say so (--yes): nothing of it comes back"));
    }
    let mut client = Rack::open(&args.rack)?.client_with(&args.domain, ClientOptions::durable())?;
    let dropped = Store::drop_named(&mut client, &args.store, access(args.take_over)).map_err(failed)?;
    output::print(&dropped, args.json);
    Ok(End::Fine)
}

impl Report for Loaded {
    fn text(&self) -> String {
        let how = match (self.bulk, self.ascending) {
            (true, _) => "together, in order",
            (false, true) => "key by key",
            (false, false) => "key by key, as their keys do not ascend",
        };
        let mut text = format!("{} rows, {how}", output::count(self.rows));
        if self.resumed_at > 0 {
            text += &format!("; {} were written before", output::count(self.resumed_at));
        }
        if self.replaced > 0 {
            text += &format!("; {} in place of others", output::count(self.replaced));
        }
        if self.stopped {
            text += "; stopped before its end: the same command goes on";
        }
        text + "\n"
    }
}

/// Loads a file into a store.
pub(crate) fn load_file(args: &IndexLoad) -> Result<End, Failure> {
    let format = args.format.or_else(|| Format::of(&args.file)).ok_or_else(|| {
        let message = format!("{}: neither .csv nor .parquet", args.file.display());
        Failure::environment(message, "say what it is (--format csv)")
    })?;
    let source = Source {
        file: args.file.clone(),
        format,
        key: args.key.clone().unwrap_or(Column::Number(1)),
        value: args.value.clone(),
        key_type: args.key_type,
        header: !args.no_header,
        delimiter: args.delimiter,
        null: args.null.clone().into_bytes(),
    };
    let asked = Arc::new(AtomicBool::new(false));
    let ask = Arc::clone(&asked);
    farmem_workload::on_interrupt(move || ask.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::environment(format!("cannot catch Ctrl-C: {error}"), ""))?;
    let mut client = Rack::open(&args.rack)?.client_with(&args.domain, ClientOptions::durable())?;
    let looking = progress::spinner("rows looked at");
    let writing = progress::bar("rows written", 0);
    let mut tell = |stage: Stage, done: u64, total: u64| match stage {
        Stage::Check => looking.set_position(done),
        Stage::Write => {
            looking.finish_and_clear();
            writing.set_length(total);
            writing.set_position(done);
        }
    };
    let stop = || asked.load(Ordering::Relaxed);
    let loaded = load(&mut client, &args.store, access(args.take_over), &source, &mut tell, &stop);
    looking.finish_and_clear();
    writing.finish_and_clear();
    let loaded = loaded?;
    output::print(&loaded, args.json);
    Ok(if loaded.stopped { End::Program(STOPPED) } else { End::Fine })
}
