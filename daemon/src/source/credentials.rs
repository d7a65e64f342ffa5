//! The secrets that a daemon has, and which to try next.
//!
//! A link that broke early leaves it open whether the provider has burnt the enrolment secret. Until a link is proven,
//! all secrets that may be valid are kept and tried in turn; then only the proven one.

use std::rc::Rc;

use crate::seal::{Secret, Use};

/// Granted secrets kept before one is proven. Each is of a link that broke before it said anything.
const MAX_GRANTED: usize = 4;

#[derive(Clone, Debug)]
pub struct Credential {
    pub secret: Rc<Secret>,
    pub using: Use,
}

impl Credential {
    pub fn new(secret: Secret, using: Use) -> Self {
        Credential { secret: Rc::new(secret), using }
    }
}

#[derive(Debug)]
pub struct Credentials {
    /// The newest last; never empty.
    all: Vec<Credential>,
    /// Counts failures: which one is tried next.
    turn: usize,
    proven: bool,
}

impl Credentials {
    pub fn new(enrol: Secret) -> Self {
        Credentials { all: vec![Credential::new(enrol, Use::Enrol)], turn: 0, proven: false }
    }

    /// What the next handshake uses.
    pub fn next(&self) -> Credential {
        let index = self.all.len() - 1 - self.turn % self.all.len();
        self.all[index].clone()
    }

    /// A handshake was refused.
    pub fn refused(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }

    /// A handshake has brought a secret.
    pub fn granted(&mut self, secret: Secret) -> Credential {
        let credential = Credential::new(secret, Use::Resume);
        if !self.proven {
            self.all.push(credential.clone());
            if self.all.len() > 1 + MAX_GRANTED {
                // The first is the enrolment secret, which may be valid as long as nothing is proven.
                self.all.remove(1);
            }
            self.turn = 0;
        }
        credential
    }

    /// The provider has the first message of the link that this secret was granted to.
    pub fn proven(&mut self, credential: Credential) {
        if !self.proven {
            self.all = vec![credential];
            self.turn = 0;
            self.proven = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::new([byte; 32])
    }

    fn order(credentials: &mut Credentials, count: usize) -> Vec<Use> {
        (0..count)
            .map(|_| {
                let using = credentials.next().using;
                credentials.refused();
                using
            })
            .collect()
    }

    /// Alone, the enrolment secret is tried again and again.
    #[test]
    fn the_enrolment_secret_is_all_there_is_at_first() {
        assert_eq!(order(&mut Credentials::new(secret(1)), 3), [Use::Enrol; 3]);
    }

    /// While it is open what the provider knows, each secret gets its turn, the newest first.
    #[test]
    fn secrets_of_links_that_broke_early_are_tried_in_turn() {
        let mut credentials = Credentials::new(secret(1));
        let newest = credentials.granted(secret(2));
        assert!(Rc::ptr_eq(&credentials.next().secret, &newest.secret));
        assert_eq!(order(&mut credentials, 4), [Use::Resume, Use::Enrol, Use::Resume, Use::Enrol]);
    }

    /// A proven secret is the only one, and nobody holds the others any more.
    #[test]
    fn a_proven_secret_is_the_only_one() {
        let mut credentials = Credentials::new(secret(1));
        let enrol = Rc::downgrade(&credentials.next().secret);
        let granted = credentials.granted(secret(2));
        credentials.proven(granted.clone());
        let again = credentials.granted(secret(3));
        credentials.proven(again);
        assert_eq!(order(&mut credentials, 2), [Use::Resume; 2]);
        assert!(Rc::ptr_eq(&credentials.next().secret, &granted.secret));
        assert!(enrol.upgrade().is_none());
    }

    /// However many links break early, the secrets kept are few, and the enrolment secret is among them.
    #[test]
    fn secrets_kept_are_bounded() {
        let mut credentials = Credentials::new(secret(1));
        for byte in 2..100 {
            credentials.granted(secret(byte));
        }
        assert_eq!(credentials.all.len(), 1 + MAX_GRANTED);
        assert_eq!(credentials.all[0].using, Use::Enrol);
    }
}
