//! Writes a tree as source for minijinja.
//!
//! Every expression is written so that nothing around it can change its
//! meaning: what is not a name, literal, subscript or call stands in
//! parentheses. What minijinja does otherwise than Jinja2 is written as a filter
//! named in [`crate::py::helpers`]; filter lookups are cached by minijinja, and
//! no template can call them, since names are checked here.

mod expr;
mod scope;

use std::collections::{BTreeSet, HashSet};

use super::ast::{BlockFilter, Expr, Params, Stmt, Target};
use super::{BLOCK, PRINT, TranspileError};
use scope::{Header, Scope};

/// Deepest tree that is written. Parsing keeps below it already; this guards the recursion here.
const DEPTH_MAX: usize = 300;

/// Writes the whole template; if strict, with the filters of [`crate::shape::guard::GUARDS`] around
/// what an operator of the engine itself, a subscript, an attribute or a call would see.
pub(super) fn emit(template: &[Stmt], is_strict: bool) -> Result<String, TranspileError> {
    let mut assigned = HashSet::new();
    assigned_names(template, &mut assigned);
    let mut with_defaults = HashSet::new();
    macros_with_defaults(template, &mut with_defaults);
    let mut emitter = Emitter {
        out: String::new(),
        assigned,
        with_defaults,
        escapes: has_markup(template),
        macros: only_macros(template),
        is_strict,
        is_soft: false,
        scopes: Vec::new(),
        flags: 0,
        depth: 0,
    };
    emitter.scope(Header::Plain, template)?;
    Ok(emitter.out)
}

struct Emitter {
    out: String,
    /// Every name that the template assigns somewhere.
    assigned: HashSet<String>,
    /// Macros that have a parameter with a default.
    with_defaults: HashSet<String>,
    /// Whether Markup strings can occur, with which `+` escapes.
    escapes: bool,
    /// Names that only macros are bound to.
    macros: HashSet<String>,
    /// Whether guards are written.
    is_strict: bool,
    /// Whether an unknown filter is an error only when reached, as Jinja2 has it within conditions.
    is_soft: bool,
    /// The scopes around the current statement, outermost first.
    scopes: Vec<Scope>,
    /// Helper variables so far.
    flags: usize,
    depth: usize,
}

impl Emitter {
    fn push(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn tag(&mut self, text: &str) {
        self.push(BLOCK.0);
        self.push(text);
        self.push(BLOCK.1);
    }

    /// Runs `write` one level deeper.
    fn nested(
        &mut self,
        line: usize,
        write: impl FnOnce(&mut Self) -> Result<(), TranspileError>,
    ) -> Result<(), TranspileError> {
        if self.depth >= DEPTH_MAX {
            return Err(TranspileError::refused(line, "nested too deep"));
        }
        self.depth += 1;
        let written = write(self);
        self.depth -= 1;
        written
    }

    /// Runs `write` with the given softness.
    fn softened(
        &mut self,
        is_soft: bool,
        write: impl FnOnce(&mut Self) -> Result<(), TranspileError>,
    ) -> Result<(), TranspileError> {
        let before = std::mem::replace(&mut self.is_soft, is_soft);
        let written = write(self);
        self.is_soft = before;
        written
    }

    fn body(&mut self, body: &[Stmt]) -> Result<(), TranspileError> {
        for statement in body {
            self.nested(0, |emitter| emitter.statement(statement))?;
        }
        Ok(())
    }

    /// A body with a scope of its own.
    fn scope(&mut self, header: Header<'_>, body: &[Stmt]) -> Result<(), TranspileError> {
        let scope = scope::analyze(header, body, &self.scopes);
        for name in &scope.undefined {
            self.tag(&format!("set {name} = __wp_undefined"));
        }
        // minijinja keeps what macros in a loop see from one round to the next; this starts each round anew.
        let is_loop = matches!(header, Header::Target(_)) && has_macro(body);
        for name in scope.read_before.iter().filter(|_| is_loop) {
            if !scope.undefined.contains(name) {
                self.tag(&format!("set {name} = {name}"));
            }
        }
        self.scopes.push(scope);
        let written = self.softened(false, |emitter| emitter.body(body));
        self.scopes.pop();
        written
    }

    /// minijinja's macros find outer variables that they read, but not namespaces that they only assign to,
    /// nor a caller that only macros within them read.
    fn enclose(&mut self, body: &[Stmt]) {
        let mut names = BTreeSet::new();
        assigned_namespaces(body, &mut names);
        if mentions_caller(body) {
            names.insert("caller".to_owned());
        }
        for name in names {
            self.tag(&format!("if {name} is defined"));
            self.tag("endif");
        }
    }

    fn statement(&mut self, statement: &Stmt) -> Result<(), TranspileError> {
        match statement {
            Stmt::Text(text) => self.push(text),
            Stmt::Print(value) => {
                self.push(PRINT.0);
                self.expr(value)?;
                self.push(PRINT.1);
            }
            Stmt::Set(target, value) => self.set(target, value)?,
            Stmt::SetBlock { line, target, filters, body } => {
                self.set_block(*line, target, filters, body)?;
            }
            Stmt::For { .. } => self.for_loop(statement)?,
            Stmt::If { branches, otherwise } => {
                self.softened(true, |emitter| emitter.if_block(branches, otherwise))?;
            }
            Stmt::With { line, values, body } => self.with(*line, values, body)?,
            Stmt::Macro { line, name, params, body } => {
                self.check_name(*line, name)?;
                self.push(BLOCK.0);
                self.push("macro ");
                self.push(name);
                self.params(*line, params)?;
                self.push(BLOCK.1);
                self.enclose(body);
                self.defaults(params)?;
                self.scope(Header::Params(params), body)?;
                self.tag("endmacro");
            }
            Stmt::CallBlock { line, params, call, body } => {
                if params.iter().any(|(_, default)| default.is_some()) {
                    return Err(TranspileError::refused(*line, "a call block with defaults"));
                }
                self.push(BLOCK.0);
                self.push("call");
                self.params(*line, params)?;
                self.push(" ");
                self.expr(call)?;
                self.push(BLOCK.1);
                self.enclose(body);
                self.scope(Header::Params(params), body)?;
                self.tag("endcall");
            }
            Stmt::FilterBlock { filters, body } => self.filter_block(filters, body)?,
            Stmt::Generation(body) => {
                self.tag("with");
                self.scope(Header::Plain, body)?;
                self.tag("endwith");
            }
            Stmt::Break => self.tag("break"),
            Stmt::Continue => self.tag("continue"),
        }
        Ok(())
    }

    fn set(&mut self, target: &Target, value: &Expr) -> Result<(), TranspileError> {
        self.push(BLOCK.0);
        self.push("set ");
        self.target(value.line, target)?;
        self.push(" = ");
        self.expr(value)?;
        self.push(match target {
            Target::Namespace(..) => "|__store",
            Target::Tuple(_) => "|__unpack",
            Target::Name(_) => "",
        });
        self.push(BLOCK.1);
        Ok(())
    }

    fn set_block(
        &mut self,
        line: usize,
        target: &Target,
        filters: &[BlockFilter],
        body: &[Stmt],
    ) -> Result<(), TranspileError> {
        let Target::Name(name) = target else {
            return Err(TranspileError::refused(line, "a set block with more than a name"));
        };
        self.check_name(line, name)?;
        self.tag(&format!("set {name}"));
        self.tag("with");
        self.scope(Header::Plain, body)?;
        self.tag("endwith");
        self.tag("endset");
        if !filters.is_empty() {
            self.push(BLOCK.0);
            self.push(&format!("set {name} = {name}"));
            self.block_filters(filters)?;
            self.push(BLOCK.1);
        }
        Ok(())
    }

    /// The block's text goes through a variable that no template can name.
    fn filter_block(
        &mut self,
        filters: &[BlockFilter],
        body: &[Stmt],
    ) -> Result<(), TranspileError> {
        self.tag("with");
        self.tag("set __wp_block");
        self.scope(Header::Plain, body)?;
        self.tag("endset");
        self.push(PRINT.0);
        self.push("__wp_block");
        self.block_filters(filters)?;
        self.push(PRINT.1);
        self.tag("endwith");
        Ok(())
    }

    fn block_filters(&mut self, filters: &[BlockFilter]) -> Result<(), TranspileError> {
        for filter in filters {
            self.filter(filter.line, &filter.name, &filter.args)?;
        }
        Ok(())
    }

    fn for_loop(&mut self, statement: &Stmt) -> Result<(), TranspileError> {
        let Stmt::For { target, iter, test, is_recursive, body, otherwise } = statement else {
            return Ok(());
        };
        // Jinja2 runs the else unless some round ran to its end; minijinja, unless there was a round.
        let flag = (!otherwise.is_empty() && leaves_round(body)).then(|| {
            self.flags += 1;
            format!("__wp_round{}", self.flags)
        });
        if let Some(flag) = &flag {
            self.tag(&format!("set {flag} = namespace(ended=false)"));
        }
        self.push(BLOCK.0);
        self.push("for ");
        self.target(iter.line, target)?;
        self.push(" in ");
        self.expr(iter)?;
        self.push(if matches!(target, Target::Tuple(_)) { "|__iter_tuples" } else { "|__iter" });
        if let Some(test) = test {
            self.push(" if ");
            self.softened(false, |emitter| emitter.expr(test))?;
        }
        if *is_recursive {
            self.push(" recursive");
        }
        self.push(BLOCK.1);
        self.scope(Header::Target(target), body)?;
        match &flag {
            Some(flag) => {
                self.tag(&format!("set {flag}.ended = true"));
                self.tag("endfor");
                self.tag(&format!("if not {flag}.ended"));
                self.tag("with");
                self.scope(Header::Plain, otherwise)?;
                self.tag("endwith");
                self.tag("endif");
            }
            None if otherwise.is_empty() => self.tag("endfor"),
            None => {
                self.tag("else");
                self.tag("with");
                self.scope(Header::Plain, otherwise)?;
                self.tag("endwith");
                self.tag("endfor");
            }
        }
        Ok(())
    }

    fn if_block(
        &mut self,
        branches: &[(Expr, Vec<Stmt>)],
        otherwise: &[Stmt],
    ) -> Result<(), TranspileError> {
        for (at, (test, body)) in branches.iter().enumerate() {
            self.push(BLOCK.0);
            self.push(if at == 0 { "if " } else { "elif " });
            self.expr(test)?;
            self.push(BLOCK.1);
            self.body(body)?;
        }
        if !otherwise.is_empty() {
            self.tag("else");
            self.body(otherwise)?;
        }
        self.tag("endif");
        Ok(())
    }

    fn with(
        &mut self,
        line: usize,
        values: &[(Target, Expr)],
        body: &[Stmt],
    ) -> Result<(), TranspileError> {
        self.push(BLOCK.0);
        self.push("with ");
        let mut bound = HashSet::new();
        for (at, (target, value)) in values.iter().enumerate() {
            let mut clashes = false;
            value
                .visit(&mut |expr| clashes |= expr.name().is_some_and(|name| bound.contains(name)));
            if clashes {
                // Jinja2 computes all values outside the block, minijinja one after the other inside.
                return Err(TranspileError::refused(line, "a with that uses its own names"));
            }
            if at > 0 {
                self.push(", ");
            }
            self.target(line, target)?;
            self.push(" = ");
            let is_unpacked = matches!(target, Target::Tuple(_));
            self.guarded(if is_unpacked { "__base" } else { "" }, value)?;
            target_names(target, &mut bound);
        }
        self.push(BLOCK.1);
        self.scope(Header::With(values), body)?;
        self.tag("endwith");
        Ok(())
    }

    fn params(&mut self, line: usize, params: &Params) -> Result<(), TranspileError> {
        self.push("(");
        for (at, (name, _)) in params.iter().enumerate() {
            self.check_name(line, name)?;
            if at > 0 {
                self.push(", ");
            }
            self.push(name);
        }
        self.push(")");
        Ok(())
    }

    /// Defaults are computed in the macro, where they see the parameters before them; minijinja would
    /// also take them for arguments that are undefined, so such arguments come wrapped.
    fn defaults(&mut self, params: &Params) -> Result<(), TranspileError> {
        if params.iter().all(|(_, default)| default.is_none()) {
            return Ok(());
        }
        for (name, default) in params {
            if let Some(default) = default {
                self.tag(&format!("if {name} is undefined"));
                self.push(BLOCK.0);
                self.push(&format!("set {name} = "));
                self.softened(false, |emitter| emitter.expr(default))?;
                self.push(BLOCK.1);
                self.tag("else");
            }
            self.tag(&format!("set {name} = {name}|__passed"));
            if default.is_some() {
                self.tag("endif");
            }
        }
        Ok(())
    }

    fn target(&mut self, line: usize, target: &Target) -> Result<(), TranspileError> {
        self.check_unpacking(line, target)?;
        match target {
            Target::Name(name) => {
                self.check_name(line, name)?;
                self.push(name);
            }
            Target::Namespace(name, attribute) => {
                self.check_name(line, name)?;
                if attribute.starts_with('_') {
                    return Err(TranspileError::refused(line, "a private namespace attribute"));
                }
                self.push(&format!("{name}.{attribute}"));
            }
            Target::Tuple(targets) => {
                self.push("(");
                for (at, target) in targets.iter().enumerate() {
                    if at > 0 {
                        self.push(", ");
                    }
                    self.target(line, target)?;
                }
                if targets.len() == 1 {
                    self.push(",");
                }
                self.push(")");
            }
        }
        Ok(())
    }

    /// No helper sees what a target within another unpacks.
    fn check_unpacking(&self, line: usize, target: &Target) -> Result<(), TranspileError> {
        match target {
            Target::Tuple(targets)
                if self.is_strict && targets.iter().any(|t| matches!(t, Target::Tuple(_))) =>
            {
                Err(TranspileError::refused(line, "targets within a target, under guard"))
            }
            _ => Ok(()),
        }
    }

    /// Names that mean something else to minijinja, or that this crate uses.
    fn check_name(&self, line: usize, name: &str) -> Result<(), TranspileError> {
        let is_special = matches!(name, "loop" | "self" | "super" | "caller");
        if is_special || is_keyword(name) || name.starts_with("__") {
            return Err(TranspileError::refused(line, format!("an assignment to {name}")));
        }
        Ok(())
    }
}

/// Whether a `break` or `continue` of the loop with this body occurs.
fn leaves_round(body: &[Stmt]) -> bool {
    body.iter().any(|statement| match statement {
        Stmt::Break | Stmt::Continue => true,
        Stmt::For { .. } => false,
        _ => statement.bodies().into_iter().any(leaves_round),
    })
}

/// Words that Jinja2 takes for names where no operator can stand, and minijinja never does.
fn is_keyword(name: &str) -> bool {
    matches!(name, "and" | "else" | "if" | "in" | "is" | "not" | "or")
}

/// Collects every name that is assigned, at any depth.
fn assigned_names(body: &[Stmt], names: &mut HashSet<String>) {
    for statement in body {
        match statement {
            Stmt::Set(target, _) | Stmt::SetBlock { target, .. } | Stmt::For { target, .. } => {
                target_names(target, names);
            }
            Stmt::With { values, .. } => {
                values.iter().for_each(|(target, _)| target_names(target, names));
            }
            Stmt::Macro { name, params, .. } => {
                names.insert(name.clone());
                names.extend(params.iter().map(|(name, _)| name.clone()));
            }
            Stmt::CallBlock { params, .. } => {
                names.extend(params.iter().map(|(name, _)| name.clone()));
            }
            _ => {}
        }
        for body in statement.bodies() {
            assigned_names(body, names);
        }
    }
}

fn assigned_namespaces(body: &[Stmt], names: &mut BTreeSet<String>) {
    for statement in body {
        if let Stmt::Set(Target::Namespace(name, _), _) = statement {
            names.insert(name.clone());
        }
        for body in statement.bodies() {
            assigned_namespaces(body, names);
        }
    }
}

fn has_macro(body: &[Stmt]) -> bool {
    body.iter().any(|statement| {
        matches!(statement, Stmt::Macro { .. } | Stmt::CallBlock { .. })
            || statement.bodies().into_iter().any(has_macro)
    })
}

fn mentions_caller(body: &[Stmt]) -> bool {
    body.iter().any(|statement| {
        let mut found = false;
        for expr in statement.exprs() {
            expr.visit(&mut |expr| found |= expr.name() == Some("caller"));
        }
        found || statement.bodies().into_iter().any(mentions_caller)
    })
}

fn macros_with_defaults(body: &[Stmt], names: &mut HashSet<String>) {
    for statement in body {
        match statement {
            Stmt::Macro { name, params, .. }
                if params.iter().any(|(_, default)| default.is_some()) =>
            {
                names.insert(name.clone());
            }
            _ => {}
        }
        for body in statement.bodies() {
            macros_with_defaults(body, names);
        }
    }
}

fn target_names(target: &Target, names: &mut HashSet<String>) {
    match target {
        Target::Name(name) => {
            names.insert(name.clone());
        }
        Target::Tuple(targets) => targets.iter().for_each(|target| target_names(target, names)),
        Target::Namespace(..) => {}
    }
}

/// Names of macros that nothing else is bound to. What they are called with goes no further than
/// their parameters.
fn only_macros(template: &[Stmt]) -> HashSet<String> {
    let (mut macros, mut others) = (HashSet::new(), HashSet::new());
    bound_names(template, &mut macros, &mut others);
    macros.retain(|name| !others.contains(name));
    macros
}

fn bound_names(body: &[Stmt], macros: &mut HashSet<String>, others: &mut HashSet<String>) {
    for statement in body {
        match statement {
            Stmt::Set(target, _) | Stmt::SetBlock { target, .. } | Stmt::For { target, .. } => {
                target_names(target, others);
            }
            Stmt::With { values, .. } => {
                values.iter().for_each(|(target, _)| target_names(target, others));
            }
            Stmt::Macro { name, params, .. } => {
                macros.insert(name.clone());
                others.extend(params.iter().map(|(name, _)| name.clone()));
            }
            Stmt::CallBlock { params, .. } => {
                others.extend(params.iter().map(|(name, _)| name.clone()));
            }
            _ => {}
        }
        for body in statement.bodies() {
            bound_names(body, macros, others);
        }
    }
}

/// Whether any filter of the template makes Markup strings.
fn has_markup(body: &[Stmt]) -> bool {
    let makes_markup = |name: &str| matches!(name, "safe" | "escape" | "e" | "forceescape");
    body.iter().any(|statement| {
        let mut found = false;
        for expr in statement.exprs() {
            expr.visit(&mut |expr| found |= expr.filter_name().is_some_and(makes_markup));
            // `map("safe")` names the filter in a string.
            expr.visit(&mut |expr| found |= expr.text().is_some_and(makes_markup));
        }
        let filters = statement.filters().iter();
        found |= filters.into_iter().any(|filter| makes_markup(&filter.name));
        found || statement.bodies().into_iter().any(has_markup)
    })
}
