//! Arguments to role. Everything else is in the library.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let role = arguments.next().unwrap_or_default();
    let rest: Vec<OsString> = arguments.collect();
    match role.to_str() {
        Some("init") => sandlotd::init::run(&rest),
        Some("host") => sandlotd::host::run(&rest),
        Some("pod") => sandlotd::pod::run(&rest),
        Some("install") => sandlotd::pod::install(&rest),
        Some("pause") => sandlotd::pod::pause(),
        Some("warden") => sandlotd::host::run_warden(&rest),
        Some("connect") => sandlotd::relay::run(&rest),
        Some("version") => {
            println!("{}", sandlotd::NAME);
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: sandlotd init|host|warden|pod|connect|install DIRECTORY|pause|version");
            ExitCode::from(2)
        }
    }
}
