//! Child processes by `fork`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::PATIENCE;

/// The exit status of a child that panicked.
const PANICKED: i32 = 101;

/// A child process.
#[derive(Debug)]
#[must_use = "a child that is not waited for stays as a zombie"]
pub struct Child(libc::pid_t);

/// Runs `part` in a child process, which then ends without running anything else of this one.
///
/// The child has the thread that called, and no other. So `part` must not wait for what another
/// thread of the parent may have held at that moment.
///
/// # Panics
///
/// Panics if the system has no process left.
pub fn fork(part: impl FnOnce()) -> Child {
    // SAFETY: the child runs `part` and `_exit`, and never comes back from here. glibc lets it
    // allocate.
    match unsafe { libc::fork() } {
        -1 => panic!("no child: {}", io::Error::last_os_error()),
        0 => {
            let status = match catch_unwind(AssertUnwindSafe(part)) {
                Ok(()) => 0,
                Err(panic) => {
                    say(&*panic);
                    PANICKED
                }
            };
            // SAFETY: it has no conditions. Destructors and the test harness belong to the parent.
            unsafe { libc::_exit(status) }
        }
        child => Child(child),
    }
}

/// Writes the message of a panic to the child's standard error, which is the parent's. The
/// harness's copy of it ends with the child.
fn say(panic: &(dyn Any + Send)) {
    let message = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let line = format!("in a child process: {}\n", message.unwrap_or("a panic without a message"));
    // SAFETY: the pointer and the length are those of `line`.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

impl Child {
    /// Waits for the child to end well.
    ///
    /// # Panics
    ///
    /// Panics if the child panicked, was ended by a signal, or does not end; then it is killed.
    pub fn join(self) {
        let since = Instant::now();
        loop {
            match self.status(libc::WNOHANG) {
                None if since.elapsed() > PATIENCE => {
                    // SAFETY: the child was not waited for, so the number is its own.
                    unsafe { libc::kill(self.0, libc::SIGKILL) };
                    self.status(0);
                    panic!("the child did not end in {PATIENCE:?}");
                }
                None => thread::sleep(Duration::from_millis(2)),
                Some(status) if libc::WIFSIGNALED(status) => {
                    panic!("the child was ended by signal {}", libc::WTERMSIG(status))
                }
                Some(status) => return assert_eq!(libc::WEXITSTATUS(status), 0, "the child failed"),
            }
        }
    }

    /// What the child ended with, once it has.
    fn status(&self, options: libc::c_int) -> Option<libc::c_int> {
        let mut status = 0;
        loop {
            // SAFETY: `status` is valid, and the child was not waited for.
            match unsafe { libc::waitpid(self.0, &mut status, options) } {
                0 => return None,
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => panic!("the child can't be waited for: {}", io::Error::last_os_error()),
                _ => return Some(status),
            }
        }
    }
}
