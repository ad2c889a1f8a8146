//! `farmem object`: loads, lists, saves and closes objects with files in a running rack (docs/objects.md).

use crate::args::{Object, ObjectClose, ObjectOpen, ObjectSave, ObjectStatus};
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use crate::progress::bar;
use farmem::api::{FileInfo, ObjectListed, OpenMode, RackOverview};
use farmem::{Client, OpenNamed, Rack, RackConfig};
use serde::Serialize;

pub(crate) fn run(command: &Object) -> Result<End, Failure> {
    match command {
        Object::Open(args) => open(args),
        Object::Status(args) => status(args),
        Object::Save(args) => save(args),
        Object::Close(args) => close(args),
    }
}

/// Report of objects.
#[derive(Serialize)]
struct Objects {
    objects: Vec<ObjectRow>,
}

#[derive(Serialize)]
struct ObjectRow {
    name: Option<String>,
    domain: String,
    bytes: u64,
    base: String,
    node: Option<String>,
    /// Number of hosts that have the object open.
    hosts: usize,
    mode: OpenMode,
    file: Option<FileInfo>,
}

impl ObjectRow {
    fn of(shown: ObjectListed, rack: &RackOverview) -> Self {
        let domain = rack.domains.iter().find(|(domain, _)| *domain == shown.domain);
        let node = rack.nodes.iter().find(|node| node.node == shown.node);
        Self {
            name: shown.name,
            domain: domain.map_or_else(|| shown.domain.to_string(), |(_, name)| name.clone()),
            bytes: shown.length,
            base: format!("{:#x}", shown.base),
            node: node.map(|node| node.name.clone()),
            hosts: shown.hosts.len(),
            mode: shown.mode,
            file: shown.file,
        }
    }
}

impl Report for Objects {
    fn text(&self) -> String {
        let none = || "-".to_owned();
        let row = |row: &ObjectRow| {
            let open = if row.hosts == 0 { none() } else { format!("{} {}", row.hosts, row.mode) };
            let (file, state) = match &row.file {
                Some(file) => (file.file.clone(), state(file)),
                None => (none(), none()),
            };
            let name = row.name.clone().unwrap_or_else(none);
            let node = row.node.clone().unwrap_or_else(none);
            vec![name, row.domain.clone(), row.bytes.to_string(), row.base.clone(), node, open, file, state]
        };
        let heading = ["object", "domain", "bytes", "first byte", "on node", "open", "file", "state"];
        let errors = self.objects.iter().filter_map(|row| {
            let error = row.file.as_ref()?.error.as_ref()?;
            Some(format!("{}: {error}\n", row.name.as_deref().unwrap_or("an object without a name")))
        });
        let errors: String = errors.collect();
        output::table(&heading, &self.objects.iter().map(row).collect::<Vec<_>>()) + &errors
    }
}

/// Describes the state of the object's bytes and file, with the progress.
fn state(file: &FileInfo) -> String {
    use farmem::api::FileStage::{Loading, Saving, Unsaved};
    match file.stage {
        Loading | Saving => format!("{}, {} bytes done", file.stage, output::count(file.done)),
        stage if file.unsaved && stage != Unsaved => format!("{stage}, unsaved"),
        stage => stage.to_string(),
    }
}

fn client(rack: &std::path::Path, domain: &str) -> Result<Client, Failure> {
    Ok(Rack::open(rack)?.client(domain)?)
}

/// Prints only the object of this name.
fn print(config: &RackConfig, name: &str, domain: &str, json: bool) -> Result<(), Failure> {
    let mut objects = all(config)?;
    objects.retain(|row| row.name.as_deref() == Some(name) && row.domain == domain);
    output::print(&Objects { objects }, json);
    Ok(())
}

fn all(config: &RackConfig) -> Result<Vec<ObjectRow>, Failure> {
    let rack = farmem::serve::overview(config)?;
    let objects = farmem::serve::objects(config)?;
    Ok(objects.into_iter().map(|shown| ObjectRow::of(shown, &rack)).collect())
}

/// Waits with a progress bar until the memory node has finished.
fn wait(client: &mut Client, named: &OpenNamed, what: &'static str) -> Result<(), Failure> {
    let bar = bar(what, named.length());
    let done = client.wait_for_file(named, &mut |file| {
        bar.set_position(file.done);
        true
    });
    bar.finish_and_clear();
    done?;
    Ok(())
}

fn open(args: &ObjectOpen) -> Result<End, Failure> {
    let config = RackConfig::load(&args.rack)?;
    let mut client = client(&args.rack, &args.domain)?;
    let node = client.node_named(&args.node)?;
    let name = args.name.as_deref().unwrap_or_else(|| last_part(&args.file));
    let named = if args.accept {
        // An object with lost changes can be opened only for reading.
        let named = client.open_named_as(name, OpenMode::Read)?;
        client.accept_file(&named)?;
        named
    } else {
        client.open_file(name, node, &args.file)?
    };
    wait(&mut client, &named, "loading the file")?;
    named.close()?;
    print(&config, name, &args.domain, args.json)?;
    Ok(End::Fine)
}

fn last_part(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

fn status(args: &ObjectStatus) -> Result<End, Failure> {
    let mut objects = all(&RackConfig::load(&args.rack)?)?;
    let wanted = |row: &ObjectRow| {
        args.domain.as_ref().is_none_or(|domain| row.domain == *domain)
            && args.name.as_ref().is_none_or(|name| row.name.as_ref() == Some(name))
    };
    objects.retain(wanted);
    if let (Some(name), true) = (&args.name, objects.is_empty()) {
        let message = format!("there is no object called {name:?}");
        return Err(Failure::environment(
            message,
            "`farmem object status --rack RACK.TOML` lists those there are",
        ));
    }
    let broken = |row: &ObjectRow| {
        use farmem::api::FileStage::{Failed, Lost};
        row.file.as_ref().is_some_and(|file| matches!(file.stage, Failed | Lost) || file.error.is_some())
    };
    let end = if objects.iter().any(broken) { End::Violation } else { End::Fine };
    output::print(&Objects { objects }, args.json);
    Ok(end)
}

fn save(args: &ObjectSave) -> Result<End, Failure> {
    let config = RackConfig::load(&args.rack)?;
    let mut client = client(&args.rack, &args.domain)?;
    let mut named = client.open_named_as(&args.name, OpenMode::Read)?;
    client.save_file(&mut named)?;
    wait(&mut client, &named, "saving the file")?;
    named.close()?;
    print(&config, &args.name, &args.domain, args.json)?;
    Ok(End::Fine)
}

fn close(args: &ObjectClose) -> Result<End, Failure> {
    let mut client = client(&args.rack, &args.domain)?;
    let objects = client.objects()?;
    let found = objects.iter().find(|row| row.name.as_deref() == Some(args.name.as_str()));
    let unsaved = found.and_then(|row| row.file.as_ref()).is_some_and(|file| file.unsaved);
    if unsaved && !args.discard {
        let message = format!("what was written to {:?} is not saved", args.name);
        return Err(Failure::environment(message, "`farmem object save` saves it; --discard has it go"));
    }
    client.unlink_named(&args.name)?;
    if args.json {
        output::print_json(&serde_json::json!({ "closed": args.name }));
    }
    Ok(End::Fine)
}
