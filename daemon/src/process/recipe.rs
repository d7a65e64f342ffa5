//! How a shell that is already running gets its script, so that what follows is what `sh -c` would have done.
//!
//! No recipe fits every shell, and a shell is believed only after it has run a [`Recipe::proof`].

/// A way to hand a script to a waiting shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// The script comes on standard input, whose first words put /dev/null in its place. Right for shells that read a
    /// block at a time (dash, busybox): messages, `$0` and line numbers are those of `sh -c`.
    Input,
    /// A builtin reads the script whole from another descriptor, then it is evaluated. Right for bash, whose messages
    /// name no `eval`.
    Evaluate,
}

/// Longest script of a waiting shell, with what is put before it: a socket takes it in one piece, and a reader gets it in
/// one.
const MAX_BYTES: usize = 4096;
const NULL_INPUT: &[u8] = b"exec </dev/null;";
/// Bash reads up to the end of the pipe; a NUL cannot come before it.
const EVALUATE: &[u8] = b"IFS= read -r -d '' -u 3;exec 3<&-;eval \"$REPLY\"";
/// What a proof exits with.
pub const PROVEN: u8 = 43;
/// Words with which the end of a script, its standard input or its options could differ from those of `sh -c`.
const UNSUITED: [&[u8]; 6] = [b"exec", b"return", b"source", b"eval", b". ", b"$-"];

impl Recipe {
    pub const ALL: [Recipe; 2] = [Recipe::Input, Recipe::Evaluate];

    /// Arguments of a waiting shell.
    pub fn argv(self) -> &'static [&'static [u8]] {
        match self {
            Recipe::Input => &[b"sh"],
            Recipe::Evaluate => &[b"sh", b"-c", EVALUATE],
        }
    }

    /// The descriptor on which the script comes.
    pub fn is_standard_input(self) -> bool {
        self == Recipe::Input
    }

    /// What is written to a waiting shell; `None` when `script` is better run by a new one.
    pub fn encode(self, script: &[u8]) -> Option<Vec<u8>> {
        let prologue = match self {
            Recipe::Input => NULL_INPUT,
            Recipe::Evaluate => b"",
        };
        let fits = prologue.len() + script.len() <= MAX_BYTES;
        let suited = !UNSUITED.iter().any(|word| script.windows(word.len()).any(|window| window == *word));
        (fits && suited).then(|| [prologue, script].concat())
    }

    /// A script of two lines that exits with [`PROVEN`] only if the shell did not lose the second one.
    pub fn proof(self) -> Vec<u8> {
        self.encode(b"test -z \"$(cat)\" || exit 1\nexit 43\n").unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts whose end could differ, and long ones, are left to a new shell.
    #[test]
    fn unsuited_scripts_are_left_to_a_new_shell() {
        for script in ["exec <data; read x", "return 3", ". ./env.sh", "echo $-", "eval x", &"x".repeat(4096)] {
            assert_eq!(Recipe::Input.encode(script.as_bytes()), None, "{script}");
        }
        assert_eq!(Recipe::Input.encode(b"true"), Some(b"exec </dev/null;true".to_vec()));
        assert!(Recipe::Input.encode(&[b'x'; 4096 - NULL_INPUT.len()]).is_some());
    }

    /// Each recipe can be proved.
    #[test]
    fn proofs_are_suited_scripts() {
        for recipe in Recipe::ALL {
            assert!(recipe.proof().ends_with(b"\nexit 43\n"));
        }
    }
}
