//! The primary context of a device.

use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::handle::Context;

/// State of the primary context.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    retains: u32,
    flags: u32,
    context: Option<Context>,
}

impl Client {
    /// Retains the primary context, which the first retain creates.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or what creating a context answers.
    pub fn primary_retain(&self, device: i32) -> Result<Context, Status> {
        let session = self.device(device)?;
        let mut primary = lock(&session.primary);
        let context = match primary.context {
            Some(context) => context,
            None => self.create_context(session.ordinal, primary.flags, true)?,
        };
        primary.context = Some(context);
        primary.retains += 1;
        Ok(context)
    }

    /// Gives one retain back; the last one destroys the context.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or `INVALID_CONTEXT` when it is not retained.
    pub fn primary_release(&self, device: i32) -> Result<(), Status> {
        let context = lock(&self.device(device)?.primary).context.ok_or(Status::INVALID_CONTEXT)?;
        self.primary_release_of(context)
    }

    /// Gives a retain of `context` back, unless a reset has taken it along.
    pub(crate) fn primary_release_of(&self, context: Context) -> Result<(), Status> {
        let mut primary = lock(&self.home(context)?.primary);
        if primary.context != Some(context) {
            return Ok(());
        }
        primary.retains = primary.retains.saturating_sub(1);
        if primary.retains > 0 {
            return Ok(());
        }
        primary.context = None;
        drop(primary);
        self.remove_context(context)
    }

    /// Destroys everything in the primary context, retained or not.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or what the worker answers.
    pub fn primary_reset(&self, device: i32) -> Result<(), Status> {
        let mut primary = lock(&self.device(device)?.primary);
        primary.retains = 0;
        primary.flags = 0;
        let context = primary.context.take();
        drop(primary);
        context.map_or(Ok(()), |context| self.remove_context(context))
    }

    /// Flags, and whether the context is active.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn primary_state(&self, device: i32) -> Result<(u32, bool), Status> {
        let primary = lock(&self.device(device)?.primary);
        Ok((primary.flags, primary.context.is_some()))
    }

    /// Sets the flags of the primary context, active or not.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` for unknown flags.
    pub fn primary_set_flags(&self, device: i32, flags: u32) -> Result<(), Status> {
        let session = self.device(device)?;
        crate::context::check_flags(flags)?;
        let mut primary = lock(&session.primary);
        primary.flags = flags;
        if let Some(context) = primary.context {
            self.contexts.with(context, |state| state.set_flags(flags));
        }
        Ok(())
    }

    /// Takes the context out of the tables and destroys it on the worker.
    pub(crate) fn remove_context(&self, context: Context) -> Result<(), Status> {
        let state = self.contexts.remove(context).ok_or(Status::INVALID_CONTEXT)?;
        // The worker frees the slots of everything inside when it is told; they are not used again
        // before that.
        let contents = self.forget_contents(&state);
        let outcome = state.session.call(&Command::ContextDestroy { context: state.id });
        drop(contents);
        outcome
    }
}
