//! `stdin` and `resize`: what a running command is told by its client.

use rustix::termios::Winsize;

use crate::error::{Code, Error, Result};
use crate::limits::MAX_CHUNK_BYTES;
use crate::message::{Reply, Resize, Stdin};
use crate::serve::{Call, Server};

impl Server {
    /// Answered by acknowledgements alone.
    pub(super) fn stdin(&mut self, link: u64, id: u32, request: &Stdin<'_>) -> Result<()> {
        let data = request.d.map_or(&[][..], |data| data);
        if data.len() > MAX_CHUNK_BYTES {
            return Err(Error::new(Code::ProtocolError, "a chunk longer than max_chunk_bytes"));
        }
        // The call's end and this have crossed: nobody reads it any more.
        let Some(Call::Command(number)) = self.find_call(link, id) else { return Ok(()) };
        let Some(input) = self.commands.get_mut(number).and_then(|command| command.input.as_mut()) else {
            self.reply(link, &Reply::Ack { id, s: 0, off: request.off + data.len() as u64 });
            return Ok(());
        };
        input.push(request.off, data, request.eof)?;
        self.pump_input(number);
        Ok(())
    }

    pub(super) fn resize(&mut self, link: u64, id: u32, request: &Resize<'_>) -> Result<()> {
        let number = match request.key {
            Some(key) => self.find_command(key)?,
            None => match self.find_call(link, id) {
                Some(Call::Command(number)) => number,
                Some(Call::Files(_)) | None => return Err(Error::new(Code::NoSuchKey, "no such command")),
            },
        };
        let terminal = self.commands.get(number).and_then(|command| command.terminal());
        let terminal = terminal.ok_or_else(|| Error::new(Code::BadRequest, "the command has no terminal"))?;
        let size = Winsize { ws_row: request.rows, ws_col: request.cols, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(terminal, size).map_err(|errno| Error::system("resize", errno))?;
        self.reply(link, &Reply::Ok { id });
        Ok(())
    }
}
