//! From PID 1 of a container to a sandbox that can be served.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use rustix::io::Errno;

use super::container::Container;
use super::environment::Environment;
use super::hooks::Watched;
use super::standing::Standing;
use super::tier::{self, Tier, Wanted};
use crate::cgroup::Leaves;
use crate::confinement::{Confinement, bound_capabilities};
use crate::descriptors::open_root;
use crate::error::{Code, Error, Result};
use crate::files::Destination;
use crate::init::boot::{forbid_core_dumps, leave_keys, open_null, with_path};
use crate::process::score::Score;
use crate::sandbox::{OnTerminate, SandboxContext};
use crate::seal::{Key, Secret};
use crate::source::{LOCAL_NAME, LinkSettings, NetworkSource, Source, parse_addresses};

/// Build what the main loop needs from what the container is.
pub fn boot() -> Result<(Source, SandboxContext)> {
    let environment = Environment::take()?;
    let settings = link_settings(&environment)?;
    let score = Score::open().inspect_err(|error| eprintln!("sandlotd: {error}")).ok();
    let mut standing = Standing::current()?;
    let workdir = std::env::current_dir().map_or_else(|_| b"/".to_vec(), |path| path.into_os_string().into_vec());
    let watched = Watched::new(Container::find()?)?;
    let places = places(&environment, &standing, &workdir)?;
    let tier = tier::enter(Wanted::of(&environment, places)?, watched, &mut standing)?;
    become_daemon(&standing)?;
    let context = context(environment, (&standing, tier, score), workdir)?;
    Ok((Source::Network(Box::new(NetworkSource::new(settings)?)), context))
}

/// Where commands work, live and leave what is temporary.
fn places(environment: &Environment, standing: &Standing, workdir: &[u8]) -> Result<Vec<Vec<u8>>> {
    let user = environment.setting("USER").map_or_else(|| standing.user(), str::to_owned);
    let home = crate::users::resolve(open_root()?.as_fd(), &user, &standing.id_maps())?.home;
    let temporary = ["/tmp", "/var/tmp", "/run", "/dev/shm"].map(|path| path.as_bytes().to_vec());
    Ok([workdir.to_vec(), home].into_iter().chain(temporary).collect())
}

/// How the provider finds us, or we it.
fn link_settings(environment: &Environment) -> Result<LinkSettings> {
    let needed = |name: &str| {
        let missing = || Error::new(Code::BadRequest, format!("SANDLOT_{name} is not set"));
        environment.setting(name).ok_or_else(missing)
    };
    let wrong = |name: &'static str| {
        move |error: Error| Error::new(Code::BadRequest, format!("SANDLOT_{name}: {}", error.message))
    };
    let listen = environment.number("LISTEN")?.map(u16::try_from).transpose();
    let milliseconds = |name| Ok::<_, Error>(environment.number(name)?.map(Duration::from_millis));
    Ok(LinkSettings {
        name: needed("NAME")?.to_owned(),
        enrol: Secret::parse(needed("ENROL")?).map_err(wrong("ENROL"))?,
        provider_key: Key::parse(needed("KEY")?).map_err(wrong("KEY"))?,
        dial: environment.setting("DIAL").map_or(Ok(Vec::new()), parse_addresses)?,
        listen: listen.map_err(|_| Error::new(Code::BadRequest, "SANDLOT_LISTEN is no port"))?,
        local: Some(LOCAL_NAME.to_vec()),
        grace: milliseconds("GRACE_MS")?,
        lease: milliseconds("LEASE_MS")?,
    })
}

fn context(
    environment: Environment,
    (standing, tier, score): (&Standing, Tier, Option<Score>),
    workdir: Vec<u8>,
) -> Result<SandboxContext> {
    let unenforced = environment.setting("UNENFORCED").unwrap_or_default();
    let context = SandboxContext {
        name: environment.setting("NAME").unwrap_or_default().to_owned(),
        mode: "pod".to_owned(),
        features: tier.features,
        unenforced: unenforced.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        workdir,
        user: Some(environment.setting("USER").map_or_else(|| standing.user(), str::to_owned)),
        id_maps: standing.id_maps(),
        null: open_null()?,
        root: open_root()?,
        destination: Destination::Files,
        confinement: Confinement::in_container(standing.allowance()),
        leaves: Leaves::unavailable(),
        score,
        on_terminate: OnTerminate::End,
        hooks: tier.hooks,
        idle_timeout: environment.number("IDLE_MS")?.map(Duration::from_millis),
        env: with_path(environment.commands),
    };
    context.default_user()?;
    Ok(context)
}

/// What makes PID 1 a daemon that its own container cannot touch.
fn become_daemon(standing: &Standing) -> Result<()> {
    let failed = |errno| Error::system("prepare the daemon", errno);
    // Nobody inside may read or trace us, nor follow the links in our /proc directory.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).map_err(failed)?;
    match rustix::process::setsid() {
        // The runtime has made it one already.
        Ok(_) | Err(Errno::PERM) => {}
        Err(errno) => return Err(failed(errno)),
    }
    match bound_capabilities(standing.capabilities) {
        // Without SETPCAP a bound stays what the container's is.
        Err(error) if error.errno == Some(libc::EPERM) => {}
        other => other?,
    }
    leave_keys();
    forbid_core_dumps()
}
