//! The content format that vLLM detects for a template (its 0.33 rules).
//!
//! vLLM looks for a loop over the content of a message: if there is one, the
//! template takes lists of parts, else strings. It follows names, not scopes:
//! aliases of `messages` made by `set` or kept in a namespace, loops over
//! those, loops over `content` of the loop variable, over the parameter of a
//! macro that such content is passed to, and over a variable named `content`
//! outside of macros. Filters, tests and slices on the way are looked through.

use std::collections::{HashSet, VecDeque};

use super::ast::{Expr, ExprKind, Stmt, Target};
use crate::chat::ContentFormat;

/// Detects the format. What vLLM's search stumbles over counts as strings, as it does there.
pub(super) fn content_format(template: &[Stmt]) -> ContentFormat {
    let mut found = Found::default();
    collect(template, &mut Vec::new(), &mut found);
    match iterates_content(&found) {
        Some(true) => ContentFormat::OpenAi,
        _ => ContentFormat::String,
    }
}

/// A loop, and the macros around it by their place in [`Found::macros`], outermost first.
struct Loop<'a> {
    target: &'a Target,
    iter: &'a Expr,
    macros: Vec<usize>,
}

struct Macro<'a> {
    name: &'a str,
    params: Vec<&'a str>,
}

/// What the search looks at, each in the order of the source.
#[derive(Default)]
struct Found<'a> {
    assigns: Vec<(&'a Target, &'a Expr)>,
    loops: Vec<Loop<'a>>,
    macros: Vec<Macro<'a>>,
    exprs: Vec<&'a Expr>,
}

fn collect<'a>(body: &'a [Stmt], around: &mut Vec<usize>, found: &mut Found<'a>) {
    for statement in body {
        found.exprs.extend(statement.exprs());
        let depth = around.len();
        match statement {
            Stmt::Set(target, value) => found.assigns.push((target, value)),
            Stmt::For { target, iter, .. } => {
                found.loops.push(Loop { target, iter, macros: around.clone() });
            }
            Stmt::Macro { name, params, .. } => {
                around.push(found.macros.len());
                let params = params.iter().map(|(name, _)| name.as_str()).collect();
                found.macros.push(Macro { name, params });
            }
            _ => {}
        }
        for body in statement.bodies() {
            collect(body, around, found);
        }
        around.truncate(depth);
    }
}

fn target_name(target: &Target) -> Option<&str> {
    match target {
        Target::Name(name) => Some(name),
        _ => None,
    }
}

/// `None` where a loop's target is no plain name, which vLLM asserts.
fn iterates_content(found: &Found<'_>) -> Option<bool> {
    let lists = message_lists(found);
    let mut messages: Vec<&str> = Vec::new();
    for Loop { target, iter, .. } in &found.loops {
        if lists.iter().any(|list| accesses(iter, list, None)) {
            messages.push(target_name(target)?);
        }
    }
    let is_content =
        |expr: &Expr| messages.iter().any(|name| accesses(expr, name, Some("content")));
    let content_params: Vec<HashSet<&str>> = found
        .macros
        .iter()
        .map(|found_macro| params_with(found_macro, found, &is_content))
        .collect();
    for Loop { target, iter, macros } in &found.loops {
        let is_match = is_content(iter)
            || match (iter.name(), macros.as_slice()) {
                (Some(name), []) => name == "content",
                (Some(name), macros) => {
                    // Of nested macros, the innermost one with content decides.
                    let mut params = macros.iter().rev().filter_map(|at| content_params.get(*at));
                    params
                        .find(|params| !params.is_empty())
                        .is_some_and(|params| params.contains(name))
                }
                (None, _) => false,
            };
        if is_match {
            return target_name(target).map(|_| true);
        }
    }
    Some(false)
}

/// `messages` and all its aliases; those in namespaces with a dot.
fn message_lists(found: &Found<'_>) -> HashSet<String> {
    let mut seen = HashSet::from(["messages".to_owned()]);
    let mut pending = VecDeque::from(["messages".to_owned()]);
    while let Some(alias) = pending.pop_front() {
        for (target, value) in &found.assigns {
            for name in aliases(target, value, &alias) {
                if seen.insert(name.clone()) {
                    pending.push_back(name);
                }
            }
        }
    }
    seen
}

/// The names that an assignment makes stand for `alias`.
fn aliases(target: &Target, value: &Expr, alias: &str) -> Vec<String> {
    let is_alias = accesses(value, alias, None);
    match (target, &value.kind) {
        (Target::Namespace(name, attribute), _) if is_alias => vec![format!("{name}.{attribute}")],
        (Target::Name(name), _) if is_alias => vec![name.clone()],
        (Target::Name(name), ExprKind::Call(callee, args))
            if callee.name() == Some("namespace") =>
        {
            let keywords = args.keywords.iter();
            let same = keywords.filter(|(_, value)| accesses(value, alias, None));
            same.map(|(key, _)| format!("{name}.{key}")).collect()
        }
        _ => Vec::new(),
    }
}

/// The parameters of a macro that are given content somewhere.
fn params_with<'a>(
    found_macro: &Macro<'a>,
    found: &Found<'_>,
    is_content: &dyn Fn(&Expr) -> bool,
) -> HashSet<&'a str> {
    let mut params = HashSet::new();
    for root in &found.exprs {
        root.visit(&mut |expr| {
            let ExprKind::Call(callee, args) = &expr.kind else {
                return;
            };
            if callee.name() != Some(found_macro.name) {
                return;
            }
            for (param, value) in found_macro.params.iter().zip(&args.positional) {
                if is_content(value) {
                    params.insert(*param);
                }
            }
            for (key, value) in &args.keywords {
                let param = found_macro.params.iter().find(|param| *param == key);
                params.extend(param.filter(|_| is_content(value)));
            }
        });
    }
    params
}

/// Whether an expression is `name`, or `name.key`, or either behind filters, tests and slices.
fn accesses(expr: &Expr, name: &str, key: Option<&str>) -> bool {
    let mut expr = expr;
    loop {
        expr = match &expr.kind {
            ExprKind::Filter(base, ..) | ExprKind::Test(base, ..) | ExprKind::Slice(base, _) => {
                base
            }
            _ => break,
        };
    }
    let Some(key) = key else {
        return is_variable(expr, name);
    };
    match &expr.kind {
        ExprKind::Attribute(base, attribute) => is_variable(base, name) && attribute == key,
        ExprKind::Item(base, item) => is_variable(base, name) && item.text() == Some(key),
        _ => false,
    }
}

/// Whether an expression reads the variable, which may be an attribute of a namespace.
fn is_variable(expr: &Expr, name: &str) -> bool {
    match (&expr.kind, name.rsplit_once('.')) {
        (ExprKind::Name(found), _) => found == name,
        (ExprKind::Attribute(base, attribute), Some((namespace, wanted))) => {
            attribute == wanted && base.name() == Some(namespace)
        }
        _ => false,
    }
}
