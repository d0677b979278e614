//! `--token-auth-file`: lines of `token,user,uid[,"group1,group2"]`. Answers for upstream's
//! `pkg/authentication/token/tokenfile`.

use std::collections::HashMap;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use shared::authn::{AuthnError, Identity, UserInfo};

use super::TokenAuthenticator;

/// Errors of a token file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TokenFileError {
    /// Too few columns.
    #[error("token file '{path}' must have at least 3 columns (token, user name, user uid), found {found}")]
    Columns {
        /// The file.
        path: String,
        /// Columns found.
        found: usize,
    },
    /// Cannot be read.
    #[error(transparent)]
    Read(#[from] shared::os::FileError),
}

/// The tokens of a file.
pub struct StaticTokens(HashMap<[u8; 32], UserInfo>);

impl StaticTokens {
    /// Reads a file.
    pub fn read(path: &str) -> Result<Self, TokenFileError> {
        let text = shared::os::read(path).map_err(TokenFileError::Read)?;
        Self::parse(path, &String::from_utf8_lossy(&text))
    }

    /// Reads the content of a file.
    pub fn parse(path: &str, text: &str) -> Result<Self, TokenFileError> {
        let mut tokens = HashMap::new();
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            let columns = columns(line);
            let [token, name, uid, rest @ ..] = columns.as_slice() else {
                return Err(TokenFileError::Columns { path: path.to_owned(), found: columns.len() });
            };
            if token.is_empty() {
                tracing::warn!(path, "empty token has been found in token file");
                continue;
            }
            let groups =
                rest.first().map(|g| g.split(',').map(|g| g.trim().to_owned()).filter(|g| !g.is_empty()).collect());
            let user = UserInfo {
                name: name.clone(),
                uid: uid.clone(),
                groups: groups.unwrap_or_default(),
                ..UserInfo::default()
            };
            tokens.insert(key(token), user);
        }
        Ok(Self(tokens))
    }
}

/// Looked up by hash, so that the time it takes says nothing about the tokens.
fn key(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[async_trait]
impl TokenAuthenticator for StaticTokens {
    async fn token(&self, token: &str, _: &[String]) -> Result<Option<Identity>, AuthnError> {
        Ok(self.0.get(&key(token)).cloned().map(Identity::from))
    }
}

/// The columns of a line of comma-separated values; `""` inside quotes is a quote.
fn columns(line: &str) -> Vec<String> {
    let (mut all, mut column, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.trim().chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                column.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut column).trim().to_owned()),
            c => column.push(c),
        }
    }
    all.push(column.trim().to_owned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_become_users() {
        let tokens = StaticTokens::parse("f", "t1,alice,1,\"dev,ops\"\n\nt2, bob, 2\n").expect("parses");
        let who = |t: &'static str| {
            let tokens = &tokens;
            async move { tokens.token(t, &[]).await.expect("no error").map(|i| (i.user.name, i.user.uid, i.user.groups)) }
        };
        assert_eq!(who("t1").await, Some(("alice".into(), "1".into(), vec!["dev".into(), "ops".into()])));
        assert_eq!(who("t2").await, Some(("bob".into(), "2".into(), vec![])));
        assert_eq!(who("t3").await, None);
    }

    #[test]
    fn short_lines_are_refused() {
        let error = StaticTokens::parse("f", "t1,alice").err().expect("refused");
        assert_eq!(
            error.to_string(),
            "token file 'f' must have at least 3 columns (token, user name, user uid), found 2"
        );
    }
}
