//! Expressions as minijinja source.

use super::super::TranspileError;
use super::super::ast::{Args, BinaryOp, CompareOp, Const, Expr, ExprKind, UnaryOp};
use super::{Emitter, is_keyword};
use crate::py::filters::{FILTERS, FILTERS_REFUSED};
use crate::py::globals::GLOBALS;
use crate::py::methods::{is_method_name, is_refused_method};
use crate::py::tests::is_test_name;

/// Globals of Jinja2 that are not here, and names that stand for machinery.
const NAMES_REFUSED: [&str; 7] =
    ["cycler", "joiner", "kwargs", "lipsum", "self", "super", "varargs"];

impl Emitter {
    /// Writes an expression that can be followed by a postfix, a filter or an operator.
    pub(super) fn expr(&mut self, expr: &Expr) -> Result<(), TranspileError> {
        self.nested(expr.line, |emitter| emitter.kind(expr))
    }

    /// The same under a guard, if the template is strict and the guard has a name.
    pub(super) fn guarded(&mut self, guard: &str, expr: &Expr) -> Result<(), TranspileError> {
        if !self.is_strict || guard.is_empty() {
            return self.expr(expr);
        }
        self.push("(");
        self.expr(expr)?;
        self.push("|");
        self.push(guard);
        self.push(")");
        Ok(())
    }

    fn kind(&mut self, expr: &Expr) -> Result<(), TranspileError> {
        match &expr.kind {
            ExprKind::Const(value) => self.constant(expr.line, value),
            ExprKind::Name(name) => self.name(expr.line, name),
            ExprKind::Tuple(items) => self.sequence(items, ("(", ")")),
            ExprKind::List(items) => self.sequence(items, ("[", "]")),
            ExprKind::Dict(items) => self.dict(items),
            ExprKind::Unary(op, operand) => self.unary(*op, operand),
            ExprKind::Binary(..) => self.binary(expr),
            ExprKind::And(..) => self.logic(expr, " and "),
            ExprKind::Or(..) => self.logic(expr, " or "),
            ExprKind::Concat(parts) => self.helper_call("__cat", parts),
            ExprKind::Compare(first, rest) => self.compare(first, rest),
            ExprKind::Conditional { test, then, otherwise } => {
                let otherwise = otherwise.as_deref();
                self.softened(true, |emitter| emitter.conditional(test, then, otherwise))
            }
            ExprKind::Attribute(base, name) => self.attribute(expr.line, base, name),
            ExprKind::Item(base, key) => self.item(base, key),
            ExprKind::Slice(base, bounds) => {
                self.push("(");
                self.expr(base)?;
                self.push("|__slice(");
                for (at, bound) in bounds.iter().enumerate() {
                    self.push(if at > 0 { ", " } else { "" });
                    match bound {
                        Some(bound) => self.expr(bound)?,
                        None => self.push("none"),
                    }
                }
                self.push("))");
                Ok(())
            }
            ExprKind::Call(callee, args) => self.call(callee, args),
            ExprKind::Filter(..) => self.filters(expr),
            ExprKind::Test(base, name, args) => self.test(expr.line, base, name, args),
        }
    }

    fn constant(&mut self, line: usize, value: &Const) -> Result<(), TranspileError> {
        match value {
            Const::None => self.push("none"),
            Const::Bool(true) => self.push("true"),
            Const::Bool(false) => self.push("false"),
            Const::Int(value) => self.push(&format!("({value})")),
            Const::Float(value) if value.is_finite() => self.push(&format!("({value:?})")),
            Const::Float(_) => return Err(TranspileError::refused(line, "a huge float")),
            Const::Str(text) => self.string(text),
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.push("\"");
        for c in text.chars() {
            if matches!(c, '"' | '\\') {
                self.out.push('\\');
            }
            self.out.push(c);
        }
        self.push("\"");
    }

    fn name(&mut self, line: usize, name: &str) -> Result<(), TranspileError> {
        let is_hidden = NAMES_REFUSED.contains(&name) && !self.assigned.contains(name);
        if is_hidden || is_keyword(name) || name.starts_with("__") {
            return Err(TranspileError::refused(line, format!("the name {name}")));
        }
        self.push(name);
        Ok(())
    }

    fn list_of(&mut self, items: &[Expr]) -> Result<(), TranspileError> {
        for (at, item) in items.iter().enumerate() {
            self.push(if at > 0 { ", " } else { "" });
            self.expr(item)?;
        }
        Ok(())
    }

    /// A list or tuple. One that holds more than constants is checked for its depth when it is made.
    fn sequence(
        &mut self,
        items: &[Expr],
        (open, close): (&str, &str),
    ) -> Result<(), TranspileError> {
        let is_constant = items.iter().all(|item| matches!(item.kind, ExprKind::Const(_)));
        self.push(if is_constant { "" } else { "(" });
        self.push(open);
        self.list_of(items)?;
        self.push(if items.len() == 1 && open == "(" { "," } else { "" });
        self.push(close);
        self.push(if is_constant { "" } else { "|__nest)" });
        Ok(())
    }

    fn dict(&mut self, items: &[(Expr, Expr)]) -> Result<(), TranspileError> {
        self.push("([");
        for (at, (key, value)) in items.iter().enumerate() {
            self.push(if at > 0 { ", (" } else { "(" });
            self.expr(key)?;
            self.push(", ");
            self.expr(value)?;
            self.push(")");
        }
        self.push("]|__dict)");
        Ok(())
    }

    fn unary(&mut self, op: UnaryOp, operand: &Expr) -> Result<(), TranspileError> {
        self.push(if op == UnaryOp::Not { "(not " } else { "(" });
        self.expr(operand)?;
        self.push(match op {
            UnaryOp::Not => ")",
            UnaryOp::Neg => "|__neg)",
            UnaryOp::Pos => "|__pos)",
        });
        Ok(())
    }

    /// A run of binary operators, flat: `(a + b + c)` or `(a|__mul(b)|__mod(c))`.
    fn binary(&mut self, expr: &Expr) -> Result<(), TranspileError> {
        let mut run = Vec::new();
        let mut start = expr;
        let is_native = self.is_native(expr);
        while let ExprKind::Binary(op, left, right) = &start.kind {
            if self.is_native(start) != is_native {
                break;
            }
            run.push((*op, right));
            start = left;
        }
        let guard = if is_native { "__addend" } else { "" };
        self.push("(");
        self.guarded(guard, start)?;
        for (op, right) in run.into_iter().rev() {
            self.push(match op {
                BinaryOp::Add if is_native => " + ",
                BinaryOp::Add => "|__add(",
                BinaryOp::Sub => "|__sub(",
                BinaryOp::Mul => "|__mul(",
                BinaryOp::Div => "|__div(",
                BinaryOp::FloorDiv => "|__floordiv(",
                BinaryOp::Mod => "|__mod(",
                BinaryOp::Pow => "|__pow(",
            });
            self.guarded(guard, right)?;
            self.push(if is_native { "" } else { ")" });
        }
        self.push(")");
        Ok(())
    }

    /// Adding a list literal is minijinja's own, which joins lists lazily: templates gather items so.
    /// Other sums may double what they add, which must be paid for.
    fn is_native(&self, expr: &Expr) -> bool {
        let ExprKind::Binary(BinaryOp::Add, left, right) = &expr.kind else {
            return false;
        };
        matches!(left.kind, ExprKind::List(_)) || matches!(right.kind, ExprKind::List(_))
    }

    fn logic(&mut self, expr: &Expr, word: &str) -> Result<(), TranspileError> {
        let mut operands = Vec::new();
        let mut start = expr;
        loop {
            let (left, right) = match (&start.kind, word) {
                (ExprKind::And(left, right), " and ") => (left, right),
                (ExprKind::Or(left, right), " or ") => (left, right),
                _ => break,
            };
            operands.push(right);
            start = left;
        }
        self.push("(");
        self.expr(start)?;
        for operand in operands.into_iter().rev() {
            self.push(word);
            self.expr(operand)?;
        }
        self.push(")");
        Ok(())
    }

    fn helper_call(&mut self, name: &str, operands: &[Expr]) -> Result<(), TranspileError> {
        let Some((first, rest)) = operands.split_first() else {
            return Ok(());
        };
        self.push("(");
        self.expr(first)?;
        self.push("|");
        self.push(name);
        self.push("(");
        self.list_of(rest)?;
        self.push("))");
        Ok(())
    }

    /// `a < b < c` is `a < b and b < c`: operands have no side effects, so they may be computed twice.
    fn compare(&mut self, first: &Expr, rest: &[(CompareOp, Expr)]) -> Result<(), TranspileError> {
        let mut left = first;
        self.push("(");
        for (at, (op, right)) in rest.iter().enumerate() {
            self.push(if at > 0 { " and " } else { "" });
            let (left_guard, right_guard) = equality_guards(*op, left, right);
            self.push(if *op == CompareOp::NotIn { "(not (" } else { "(" });
            self.guarded(left_guard, left)?;
            self.push(match op {
                CompareOp::Eq => " == ",
                CompareOp::Ne => " != ",
                CompareOp::Lt => "|__lt(",
                CompareOp::Le => "|__le(",
                CompareOp::Gt => "|__gt(",
                CompareOp::Ge => "|__ge(",
                CompareOp::In | CompareOp::NotIn => "|__in(",
            });
            self.guarded(right_guard, right)?;
            self.push(match op {
                CompareOp::Eq | CompareOp::Ne => ")",
                CompareOp::NotIn => ")))",
                _ => "))",
            });
            left = right;
        }
        self.push(")");
        Ok(())
    }

    fn conditional(
        &mut self,
        test: &Expr,
        then: &Expr,
        otherwise: Option<&Expr>,
    ) -> Result<(), TranspileError> {
        self.push("(");
        self.expr(then)?;
        self.push(" if ");
        self.expr(test)?;
        if let Some(otherwise) = otherwise {
            self.push(" else ");
            self.expr(otherwise)?;
        }
        self.push(")");
        Ok(())
    }

    fn attribute(&mut self, line: usize, base: &Expr, name: &str) -> Result<(), TranspileError> {
        if name.starts_with("__") {
            return Err(TranspileError::refused(line, format!("the attribute {name}")));
        }
        let is_loop = base.name() == Some("loop");
        if is_method_name(name) && !is_loop {
            self.push("(");
            self.expr(base)?;
            self.push("|__attr(");
            self.string(name);
            self.push("))");
            return Ok(());
        }
        self.guarded(if is_loop { "" } else { "__base" }, base)?;
        self.push(".");
        self.push(name);
        Ok(())
    }

    fn item(&mut self, base: &Expr, key: &Expr) -> Result<(), TranspileError> {
        let is_plain = match &key.kind {
            ExprKind::Const(Const::Str(name)) => !is_method_name(name),
            ExprKind::Const(Const::Int(_)) => true,
            _ => false,
        };
        if !is_plain || self.escapes {
            self.push("(");
            self.expr(base)?;
            self.push("|__item(");
            self.expr(key)?;
            self.push("))");
            return Ok(());
        }
        self.guarded("__base", base)?;
        self.push("[");
        self.expr(key)?;
        self.push("]");
        Ok(())
    }

    fn call(&mut self, callee: &Expr, args: &Args) -> Result<(), TranspileError> {
        let guard = if self.is_checked(callee) { "" } else { "__plain" };
        match &callee.kind {
            ExprKind::Name(name) if self.with_defaults.contains(name) => {
                self.push(name);
                return self.args_with(args, guard, "|__pass");
            }
            ExprKind::Attribute(base, name) if !name.starts_with("__") => {
                if is_refused_method(name) {
                    return Err(TranspileError::refused(callee.line, format!("the method {name}")));
                }
                self.expr(base)?;
                self.push(".");
                self.push(name);
            }
            _ => self.expr(callee)?,
        }
        self.args_with(args, guard, "")
    }

    /// Whether what is called needs no guard: a macro, or a function that has a rule of its own.
    fn is_checked(&self, callee: &Expr) -> bool {
        callee.name().is_some_and(|name| {
            let is_function = GLOBALS.iter().any(|(known, _)| *known == name);
            self.macros.contains(name) || is_function && !self.assigned.contains(name)
        })
    }

    fn args(&mut self, args: &Args) -> Result<(), TranspileError> {
        self.args_with(args, "", "")
    }

    /// Arguments under a guard, each followed by a filter that takes `undefined` along; unpacked ones
    /// are left as they are.
    fn args_with(&mut self, args: &Args, guard: &str, filter: &str) -> Result<(), TranspileError> {
        self.push("(");
        let mut separator = "";
        for value in &args.positional {
            self.push(separator);
            self.guarded(guard, value)?;
            self.push(filter);
            separator = ", ";
        }
        if let Some(value) = &args.dyn_args {
            self.push(separator);
            self.push("*");
            self.guarded("__plain", value)?;
            separator = ", ";
        }
        for (name, value) in &args.keywords {
            self.push(separator);
            self.push(name);
            self.push("=");
            self.guarded(guard, value)?;
            self.push(filter);
            separator = ", ";
        }
        if let Some(value) = &args.dyn_kwargs {
            self.push(separator);
            self.push("**");
            self.guarded("__plain", value)?;
        }
        self.push(")");
        Ok(())
    }

    fn filters(&mut self, expr: &Expr) -> Result<(), TranspileError> {
        let mut run = Vec::new();
        let mut start = expr;
        while let ExprKind::Filter(base, name, args) = &start.kind {
            run.push((start.line, name, args));
            start = base;
        }
        self.push("(");
        self.expr(start)?;
        for (line, name, args) in run.into_iter().rev() {
            self.filter(line, name, args)?;
        }
        self.push(")");
        Ok(())
    }

    /// `|name(args)`.
    pub(super) fn filter(
        &mut self,
        line: usize,
        name: &str,
        args: &Args,
    ) -> Result<(), TranspileError> {
        if FILTERS_REFUSED.contains(&name) {
            return Err(TranspileError::refused(line, format!("the filter {name}")));
        }
        let is_known = FILTERS.iter().any(|(known, _)| *known == name);
        if !is_known && !self.is_soft {
            return Err(TranspileError::invalid(line, format!("no filter named {name}")));
        }
        self.push("|");
        self.push(if is_known { name } else { "__unknown" });
        if !args.is_empty() {
            self.args(args)?;
        }
        Ok(())
    }

    fn test(
        &mut self,
        line: usize,
        base: &Expr,
        name: &str,
        args: &Args,
    ) -> Result<(), TranspileError> {
        let is_known = is_test_name(name);
        if !is_known && !self.is_soft {
            return Err(TranspileError::invalid(line, format!("no test named {name}")));
        }
        self.push("(");
        self.expr(base)?;
        self.push(if is_known { " is " } else { "|__unknown)" });
        if is_known {
            self.push(name);
            if !args.is_empty() {
                self.args(args)?;
            }
            self.push(")");
        }
        Ok(())
    }
}

/// The guards of the two sides of `==` and `!=`. No text equals a literal that is no string, and none
/// that is not empty equals the empty one, so opposite those a text may stand.
fn equality_guards(op: CompareOp, left: &Expr, right: &Expr) -> (&'static str, &'static str) {
    if !matches!(op, CompareOp::Eq | CompareOp::Ne) {
        return ("", "");
    }
    let guard_opposite = |other: &Expr| match &other.kind {
        ExprKind::Const(Const::Str(text)) if !text.is_empty() => "__plain",
        ExprKind::Const(_) => "__text",
        _ => "__plain",
    };
    (guard_opposite(right), guard_opposite(left))
}
