//! The template engine: the environment that templates run in, and one run.
//!
//! In: a template's name, its variables, the limits. Out: the text, and the
//! fuel that it took. A second environment has the same operations under guard,
//! for learning shapes (see [`crate::shape`]).

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};

use crate::error::RenderError;
use crate::limits::{CALL_DEPTH_MAX, RenderLimits};
use crate::py::filters::{FILTERS, Native, is_charged};
use crate::py::globals::{GLOBALS, Raised};
use crate::py::helpers::HELPERS;
use crate::py::tests::{MORE_TESTS, TESTS};
use crate::py::{methods, repr};
use crate::shape::guard::{self, GUARDS, Operation, Probe};
use crate::transpile::{BLOCK, COMMENT, PRINT};

/// Runs a template; gives what it writes, and the fuel that it took.
pub(super) fn run(
    env: &Environment<'static>,
    name: &str,
    context: Value,
    limits: &RenderLimits,
) -> Result<(String, u64), RenderError> {
    let with_fuel;
    let env = if env.fuel() == Some(limits.fuel) {
        env
    } else {
        let mut env = env.clone();
        env.set_fuel(Some(limits.fuel));
        with_fuel = env;
        &with_fuel
    };
    let template = env.get_template(name).map_err(|_| RenderError::NoSuchTemplate)?;
    let mut out =
        BoundedWriter { bytes: Vec::new(), bytes_max: limits.output_bytes_max, is_full: false };
    let result = template.render_captured_to(context, &mut out);
    if out.is_full {
        return Err(RenderError::OutputTooLong { bytes_max: limits.output_bytes_max });
    }
    let captured = result.map_err(|error| render_error(&error))?;
    let fuel = captured.state().fuel_levels().map_or(0, |(consumed, _)| consumed);
    // minijinja writes whole strings only.
    let text = String::from_utf8(out.bytes);
    Ok((text.map_err(|_| RenderError::Operation("not UTF-8".to_owned()))?, fuel))
}

/// The environment that transformers builds, with Python's behaviour in it; with a probe, under guard.
pub(super) fn environment(probe: Option<&Arc<Probe>>) -> Environment<'static> {
    let mut env = Environment::empty();
    // The transpiler has resolved white space; here text is text.
    let syntax = SyntaxConfig::builder()
        .block_delimiters(BLOCK.0, BLOCK.1)
        .variable_delimiters(PRINT.0, PRINT.1)
        .comment_delimiters(COMMENT.0, COMMENT.1)
        .keep_trailing_newline(true)
        .build();
    if let Ok(syntax) = syntax {
        env.set_syntax(syntax);
    }
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_recursion_limit(CALL_DEPTH_MAX);
    env.set_debug(false);
    env.set_fuel(Some(RenderLimits::default().fuel));
    match probe {
        Some(probe) => add_guarded(&mut env, probe),
        None => add_plain(&mut env),
    }
    env
}

fn add_plain(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(methods::call_method);
    env.set_formatter(|out, _state, value| print(out, value));
    for (name, filter) in FILTERS.into_iter().chain(HELPERS) {
        env.add_filter(name, native(filter, is_charged(name)));
    }
    for (name, test) in TESTS.into_iter().chain(MORE_TESTS) {
        env.add_test(name, native(test, false));
    }
    for (name, function) in GLOBALS {
        env.add_function(name, native(function, false));
    }
}

/// The same operations, each under its guard.
fn add_guarded(env: &mut Environment<'static>, probe: &Arc<Probe>) {
    let own = probe.clone();
    env.set_unknown_method_callback(move |state, receiver, method, args| {
        guard::call_method(&own, state, receiver, method, args)
    });
    let own = probe.clone();
    env.set_formatter(move |out, _state, value| {
        own.check_print(value)?;
        print(out, value)
    });
    let guards = GUARDS.map(|name| (name, guard::unchanged as Native));
    for (name, filter) in FILTERS.into_iter().chain(HELPERS).chain(guards) {
        let charged = is_charged(name);
        env.add_filter(name, guard::guard(probe.clone(), Operation::Filter, name, filter, charged));
    }
    for (name, test) in TESTS.into_iter().chain(MORE_TESTS) {
        env.add_test(name, guard::guard(probe.clone(), Operation::Test, name, test, false));
    }
    for (name, function) in GLOBALS {
        let guarded = guard::guard(probe.clone(), Operation::Function, name, function, false);
        env.add_function(name, guarded);
    }
}

fn print(out: &mut minijinja::Output, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text)?,
        None => out.write_str(&repr::to_str(value)?)?,
    }
    Ok(())
}

/// Adapts a function over raw arguments to minijinja's typed ones; it pays for the items of its list.
fn native(
    function: Native,
    is_charged: bool,
) -> impl Fn(
    &mut minijinja::State<'_, '_>,
    minijinja::value::Rest<minijinja::value::ValueOrKwargs>,
) -> Result<Value, Error>
+ Send
+ Sync
+ 'static {
    move |state, args| {
        let args = args.into_values();
        if let Some(first) = args.first().filter(|_| is_charged) {
            methods::charge_items(state, first)?;
        }
        function(state, &args)
    }
}

/// A byte sink that stops at a limit.
struct BoundedWriter {
    bytes: Vec<u8>,
    bytes_max: usize,
    is_full: bool,
}

impl std::io::Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len().saturating_add(bytes.len()) > self.bytes_max {
            self.is_full = true;
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn render_error(error: &Error) -> RenderError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = source {
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return RenderError::Raised(message.clone());
        }
        let error = current.downcast_ref::<Error>();
        if error.is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return RenderError::OutOfFuel;
        }
        source = current.source();
    }
    RenderError::Operation(error.to_string())
}
