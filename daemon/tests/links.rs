//! Links across a network: who may have one, how it begins, breaks and begins again.
#![allow(clippy::unwrap_used)]

mod support;

#[path = "../examples/link_vectors.rs"]
mod link_vectors;

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use sandlotd::source::LinkSettings;
use support::network::{Pod, Provider, arrival, dial, local_name, settings};

/// The vectors that the other language runs are what this one makes.
#[test]
fn the_vectors_are_ours() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/vectors/links.json");
    assert!(std::fs::read_to_string(path).unwrap() == link_vectors::text(), "cargo run --example link_vectors");
}

/// A daemon dials its provider, and runs commands for it.
#[test]
fn a_dialled_provider_is_served() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _pod = Pod::start(LinkSettings { dial: vec![listener.local_addr().unwrap()], ..settings() });
    let mut client = Provider::new().link(arrival(&listener));
    assert_eq!(client.run("echo dialled").out(), "dialled\n");
}

/// A provider dials a daemon that listens.
#[test]
fn a_provider_that_dials_is_served() {
    let pod = Pod::start(LinkSettings { listen: Some(0), ..settings() });
    let mut client = Provider::new().link(dial(pod.address()));
    assert_eq!(client.run("echo listened").out(), "listened\n");
}

/// A provider that comes over the abstract socket is served.
#[test]
fn a_local_relay_is_served() {
    let name = local_name();
    let _pod = Pod::start(LinkSettings { local: Some(name.clone()), ..settings() });
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut client = Provider::new().link(stream);
    assert_eq!(client.run("echo local").out(), "local\n");
}
