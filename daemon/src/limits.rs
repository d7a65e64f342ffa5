//! Every number of the wire, with its unit; `wire/limits.json` is the common source and a test holds this file to it.

pub const MAX_FRAME_BYTES: usize = 2_097_152;
/// The longest frame before the peer's hello.
pub const MAX_HELLO_BYTES: usize = 4_096;
/// Levels of nesting of one frame; the frame's own map is the first.
pub const MAX_DEPTH: usize = 4;
pub const MAX_CHUNK_BYTES: usize = 262_144;
/// Output of one stream that the exit frame itself may carry.
pub const INLINE_BYTES: usize = 262_144;
/// Unacknowledged bytes of one stream.
pub const WINDOW_BYTES: u64 = 1_048_576;
pub const MAX_SCRIPT_BYTES: usize = 1_048_576;
/// All items of one argv together, each with its terminator.
pub const MAX_ARGV_BYTES: usize = 1_048_576;
/// All entries of one environment overlay together, each with its terminator.
pub const MAX_ENV_BYTES: usize = 262_144;
pub const MAX_PATH_BYTES: usize = 4_096;
pub const MAX_KEY_CHARS: usize = 64;
pub const MAX_MESSAGE_CHARS: usize = 1_024;
/// Live calls on one connection.
pub const MAX_CALLS: usize = 4_096;
/// Live commands in one sandbox.
pub const MAX_COMMANDS: usize = 1_024;
/// Finished commands whose results wait to be fetched.
pub const MAX_RESULTS: usize = 1_024;
pub const MAX_RESULT_BYTES: u64 = 268_435_456;
pub const DEFAULT_CAP_BYTES: u64 = 16_777_216;
pub const MAX_CAP_BYTES: u64 = 268_435_456;
pub const KEEPALIVE_MS: u64 = 10_000;
pub const LINK_DEAD_MS: u64 = 60_000;
/// One message of a handshake, its length included.
pub const MAX_HANDSHAKE_BYTES: usize = 512;
/// Plain text in one message of a sealed link.
pub const MAX_SEALED_BYTES: usize = 65_519;
/// From an accepted or begun connection to an authenticated link.
pub const HANDSHAKE_MS: u64 = 10_000;
/// Connections that somebody has opened to a provider and not yet authenticated.
pub const MAX_HALF_OPEN: usize = 64;
/// The same of a daemon.
pub const MAX_HALF_OPEN_DAEMON: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of `wire/limits.json` is here with the same value, and none is missing on either side.
    #[test]
    fn the_numbers_are_those_of_the_wire() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/limits.json");
        let text = std::fs::read_to_string(path).unwrap();
        let wire: std::collections::BTreeMap<String, u64> = serde_json::from_str(&text).unwrap();
        let ours: std::collections::BTreeMap<String, u64> = [
            ("max_frame_bytes", MAX_FRAME_BYTES as u64),
            ("max_hello_bytes", MAX_HELLO_BYTES as u64),
            ("max_depth", MAX_DEPTH as u64),
            ("max_chunk_bytes", MAX_CHUNK_BYTES as u64),
            ("inline_bytes", INLINE_BYTES as u64),
            ("window_bytes", WINDOW_BYTES),
            ("max_script_bytes", MAX_SCRIPT_BYTES as u64),
            ("max_argv_bytes", MAX_ARGV_BYTES as u64),
            ("max_env_bytes", MAX_ENV_BYTES as u64),
            ("max_path_bytes", MAX_PATH_BYTES as u64),
            ("max_key_chars", MAX_KEY_CHARS as u64),
            ("max_message_chars", MAX_MESSAGE_CHARS as u64),
            ("max_calls", MAX_CALLS as u64),
            ("max_commands", MAX_COMMANDS as u64),
            ("max_results", MAX_RESULTS as u64),
            ("max_result_bytes", MAX_RESULT_BYTES),
            ("default_cap_bytes", DEFAULT_CAP_BYTES),
            ("max_cap_bytes", MAX_CAP_BYTES),
            ("keepalive_ms", KEEPALIVE_MS),
            ("link_dead_ms", LINK_DEAD_MS),
            ("max_handshake_bytes", MAX_HANDSHAKE_BYTES as u64),
            ("max_sealed_bytes", MAX_SEALED_BYTES as u64),
            ("handshake_ms", HANDSHAKE_MS),
            ("max_half_open", MAX_HALF_OPEN as u64),
            ("max_half_open_daemon", MAX_HALF_OPEN_DAEMON as u64),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        assert_eq!(wire, ours);
    }
}
