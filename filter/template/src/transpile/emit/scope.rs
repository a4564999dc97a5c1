//! Which variables of a scope start out undefined, as Jinja2's compiler decides it.
//!
//! Jinja2 makes a name local to the whole scope that assigns it, as Python
//! does. Unless the scope reads the name before, or an enclosing scope knows
//! it, it is undefined until then, even where the context has a variable of
//! that name. In one scope nothing shows, but loops and macros within it that
//! come before the assignment see the difference. In: a body and the names
//! that the scopes around know. Out: the names that this one knows, and those
//! to be made undefined at its start.

use std::collections::{BTreeSet, HashSet};

use super::super::ast::{Expr, Params, Stmt, Target};

/// The names of one scope.
#[derive(Debug, Default, Clone)]
pub(super) struct Scope {
    /// Names that are read or assigned at this level.
    pub(super) known: HashSet<String>,
    /// Names to be made undefined at the start.
    pub(super) undefined: BTreeSet<String>,
    /// Names that scopes within this one read before it assigns them.
    pub(super) read_before: BTreeSet<String>,
}

/// What declares a scope's first names.
#[derive(Debug, Clone, Copy)]
pub(super) enum Header<'a> {
    /// None: the template, a set block, the else of a loop.
    Plain,
    /// A loop's targets.
    Target(&'a Target),
    /// A macro's parameters.
    Params(&'a Params),
    /// The targets of a `with`.
    With(&'a [(Target, Expr)]),
}

/// Analyzes a body within the scopes `outer`.
pub(super) fn analyze(header: Header<'_>, body: &[Stmt], outer: &[Scope]) -> Scope {
    let mut symbols = Symbols::new(outer);
    match header {
        Header::Plain => {}
        Header::Target(target) => symbols.declare(target),
        Header::Params(params) => {
            for (name, default) in params {
                symbols.declare_name(name);
                symbols.load_all(default.iter());
            }
            symbols.declare_name("caller");
        }
        Header::With(values) => values.iter().for_each(|(target, _)| symbols.declare(target)),
    }
    symbols.body(body);
    Scope { known: symbols.known, undefined: symbols.undefined, read_before: symbols.read_before }
}

#[derive(Clone)]
struct Symbols<'a> {
    outer: &'a [Scope],
    known: HashSet<String>,
    stored: HashSet<String>,
    /// Names that scopes within this one have read so far.
    read_within: HashSet<String>,
    undefined: BTreeSet<String>,
    read_before: BTreeSet<String>,
}

impl<'a> Symbols<'a> {
    fn new(outer: &'a [Scope]) -> Self {
        Self {
            outer,
            known: HashSet::new(),
            stored: HashSet::new(),
            read_within: HashSet::new(),
            undefined: BTreeSet::new(),
            read_before: BTreeSet::new(),
        }
    }

    fn is_known_outside(&self, name: &str) -> bool {
        self.outer.iter().any(|scope| scope.known.contains(name))
    }

    fn declare_name(&mut self, name: &str) {
        self.known.insert(name.to_owned());
        self.stored.insert(name.to_owned());
    }

    fn declare(&mut self, target: &Target) {
        match target {
            Target::Name(name) => self.declare_name(name),
            Target::Tuple(targets) => targets.iter().for_each(|target| self.declare(target)),
            Target::Namespace(name, _) => self.load(name),
        }
    }

    fn load(&mut self, name: &str) {
        if !self.known.contains(name) && !self.is_known_outside(name) {
            self.known.insert(name.to_owned());
        }
    }

    fn load_all<'e>(&mut self, exprs: impl IntoIterator<Item = &'e Expr>) {
        for expr in exprs {
            expr.visit(&mut |expr| {
                if let Some(name) = expr.name() {
                    self.load(name);
                }
            });
        }
    }

    fn store_name(&mut self, name: &str) {
        self.stored.insert(name.to_owned());
        let is_new = self.known.insert(name.to_owned());
        if self.read_within.contains(name) {
            self.read_before.insert(name.to_owned());
            if is_new && !self.is_known_outside(name) {
                self.undefined.insert(name.to_owned());
            }
        }
    }

    fn store(&mut self, target: &Target) {
        match target {
            Target::Name(name) => self.store_name(name),
            Target::Tuple(targets) => targets.iter().for_each(|target| self.store(target)),
            Target::Namespace(name, _) => self.load(name),
        }
    }

    fn body(&mut self, body: &[Stmt]) {
        body.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Set(target, value) => {
                self.load_all([value]);
                self.store(target);
            }
            Stmt::If { branches, otherwise } => self.if_block(branches, otherwise),
            Stmt::For { iter, .. } => {
                self.load_all([iter]);
                self.within(statement);
            }
            Stmt::With { values, .. } => {
                self.load_all(values.iter().map(|(_, value)| value));
                self.within(statement);
            }
            Stmt::CallBlock { call, .. } => {
                self.load_all([call]);
                self.within(statement);
            }
            Stmt::SetBlock { target, .. } => {
                self.within(statement);
                self.store(target);
            }
            Stmt::Macro { name, .. } => {
                self.within(statement);
                self.store_name(name);
            }
            Stmt::FilterBlock { .. } => {
                self.load_all(statement.exprs());
                self.within(statement);
            }
            Stmt::Generation(_) => self.within(statement),
            Stmt::Print(value) => self.load_all([value]),
            Stmt::Text(_) | Stmt::Break | Stmt::Continue => {}
        }
    }

    /// Notes what the scope of a statement reads.
    fn within(&mut self, statement: &Stmt) {
        for expr in statement.exprs() {
            expr.visit(&mut |expr| self.read_within.extend(expr.name().map(str::to_owned)));
        }
        if let Stmt::Set(Target::Namespace(name, _), _) = statement {
            self.read_within.insert(name.clone());
        }
        for inner in statement.bodies().into_iter().flatten() {
            self.within(inner);
        }
    }

    fn if_block(&mut self, branches: &[(Expr, Vec<Stmt>)], otherwise: &[Stmt]) {
        let Some(((test, body), elifs)) = branches.split_first() else {
            return;
        };
        self.load_all([test]);
        let mut in_body = self.clone();
        in_body.body(body);
        let mut in_elifs = self.clone();
        for branch in elifs {
            in_elifs.if_block(std::slice::from_ref(branch), &[]);
        }
        let mut in_else = self.clone();
        in_else.body(otherwise);
        self.merge([in_body, in_elifs, in_else]);
    }

    /// A name that only some branches assign is looked up in the context where they do not.
    fn merge(&mut self, branches: [Self; 3]) {
        let mut partial = HashSet::new();
        for name in branches.iter().flat_map(|branch| &branch.stored) {
            let is_everywhere = branches.iter().all(|branch| branch.stored.contains(name));
            if !is_everywhere && !self.stored.contains(name) {
                partial.insert(name.clone());
            }
        }
        for branch in branches {
            self.known.extend(branch.known);
            self.stored.extend(branch.stored);
            self.read_within.extend(branch.read_within);
            self.undefined.extend(branch.undefined);
            self.read_before.extend(branch.read_before);
        }
        self.undefined.retain(|name| !partial.contains(name));
    }
}
