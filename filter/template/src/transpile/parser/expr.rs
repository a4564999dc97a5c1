//! Expressions, after Jinja2's grammar: one function a level of precedence, loosest first.

use super::super::TranspileError;
use super::super::ast::{Args, BinaryOp, CompareOp, Const, Expr, ExprKind, UnaryOp};
use super::super::lexer::TokenKind;
use super::{Parser, RUN_MAX};

fn boxed(expr: Expr) -> Box<Expr> {
    Box::new(expr)
}

impl Parser {
    /// Any expression but a bare tuple.
    pub(super) fn expression(&mut self) -> Result<Expr, TranspileError> {
        self.nested(Self::conditional)
    }

    fn conditional(&mut self) -> Result<Expr, TranspileError> {
        let mut line = self.line();
        let mut then = self.or()?;
        while self.skip_name("if") {
            self.count()?;
            let test = boxed(self.or()?);
            let otherwise = match self.skip_name("else") {
                true => Some(boxed(self.nested(Self::conditional)?)),
                false => None,
            };
            let kind = ExprKind::Conditional { test, then: boxed(then), otherwise };
            then = Expr { line, kind };
            line = self.line();
        }
        Ok(then)
    }

    /// One more operator of a run.
    fn count(&mut self) -> Result<(), TranspileError> {
        self.runs += 1;
        if self.runs > RUN_MAX {
            return Err(self.refused("too many operators in one expression"));
        }
        Ok(())
    }

    pub(super) fn or(&mut self) -> Result<Expr, TranspileError> {
        let line = self.line();
        let mut left = self.and()?;
        while self.skip_name("or") {
            self.count()?;
            let right = self.and()?;
            left = Expr { line, kind: ExprKind::Or(boxed(left), boxed(right)) };
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr, TranspileError> {
        let line = self.line();
        let mut left = self.not()?;
        while self.skip_name("and") {
            self.count()?;
            let right = self.not()?;
            left = Expr { line, kind: ExprKind::And(boxed(left), boxed(right)) };
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr, TranspileError> {
        let line = self.line();
        if self.skip_name("not") {
            let operand = boxed(self.nested(Self::not)?);
            return Ok(Expr { line, kind: ExprKind::Unary(UnaryOp::Not, operand) });
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr, TranspileError> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(op) = self.compare_op() {
            self.count()?;
            rest.push((op, self.sum()?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        Ok(Expr { line, kind: ExprKind::Compare(boxed(first), rest) })
    }

    fn compare_op(&mut self) -> Option<CompareOp> {
        let op = match self.kind() {
            TokenKind::Op("==") => CompareOp::Eq,
            TokenKind::Op("!=") => CompareOp::Ne,
            TokenKind::Op("<") => CompareOp::Lt,
            TokenKind::Op("<=") => CompareOp::Le,
            TokenKind::Op(">") => CompareOp::Gt,
            TokenKind::Op(">=") => CompareOp::Ge,
            TokenKind::Name(name) if name == "in" => CompareOp::In,
            TokenKind::Name(name) if name == "not" => {
                if !matches!(self.next_kind(), TokenKind::Name(next) if next == "in") {
                    return None;
                }
                self.at += 1;
                CompareOp::NotIn
            }
            _ => return None,
        };
        self.at += 1;
        Some(op)
    }

    /// A run of left-associative binary operators.
    fn binary(
        &mut self,
        operand: fn(&mut Self) -> Result<Expr, TranspileError>,
        operator: fn(&TokenKind) -> Option<BinaryOp>,
    ) -> Result<Expr, TranspileError> {
        let line = self.line();
        let mut left = operand(self)?;
        while let Some(op) = operator(self.kind()) {
            self.at += 1;
            self.count()?;
            let right = operand(self)?;
            left = Expr { line, kind: ExprKind::Binary(op, boxed(left), boxed(right)) };
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expr, TranspileError> {
        self.binary(Self::concat, |kind| match kind {
            TokenKind::Op("+") => Some(BinaryOp::Add),
            TokenKind::Op("-") => Some(BinaryOp::Sub),
            _ => None,
        })
    }

    fn concat(&mut self) -> Result<Expr, TranspileError> {
        let line = self.line();
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_op("~") {
            self.count()?;
            parts.push(self.product()?);
        }
        Ok(Expr { line, kind: ExprKind::Concat(parts) })
    }

    fn product(&mut self) -> Result<Expr, TranspileError> {
        self.binary(Self::power, |kind| match kind {
            TokenKind::Op("*") => Some(BinaryOp::Mul),
            TokenKind::Op("/") => Some(BinaryOp::Div),
            TokenKind::Op("//") => Some(BinaryOp::FloorDiv),
            TokenKind::Op("%") => Some(BinaryOp::Mod),
            _ => None,
        })
    }

    fn power(&mut self) -> Result<Expr, TranspileError> {
        self.binary(
            |parser| parser.unary(true),
            |kind| matches!(kind, TokenKind::Op("**")).then_some(BinaryOp::Pow),
        )
    }

    /// A sign binds closer than a filter: `-1|abs` is `(-1)|abs`.
    fn unary(&mut self, with_filter: bool) -> Result<Expr, TranspileError> {
        let line = self.line();
        let sign = match self.kind() {
            TokenKind::Op("-") => Some(UnaryOp::Neg),
            TokenKind::Op("+") => Some(UnaryOp::Pos),
            _ => None,
        };
        let node = match sign {
            Some(op) => {
                self.at += 1;
                let operand = boxed(self.nested(|parser| parser.unary(false))?);
                Expr { line, kind: ExprKind::Unary(op, operand) }
            }
            None => self.primary()?,
        };
        let node = self.postfix(node)?;
        if with_filter { self.filters(node) } else { Ok(node) }
    }

    fn primary(&mut self) -> Result<Expr, TranspileError> {
        let line = self.line();
        let kind = match self.advance() {
            TokenKind::Name(name) => match name.as_str() {
                "true" | "True" => ExprKind::Const(Const::Bool(true)),
                "false" | "False" => ExprKind::Const(Const::Bool(false)),
                "none" | "None" => ExprKind::Const(Const::None),
                _ => ExprKind::Name(name),
            },
            TokenKind::Str(mut text) => {
                while let TokenKind::Str(more) = self.kind() {
                    text.push_str(more);
                    self.at += 1;
                }
                ExprKind::Const(Const::Str(text))
            }
            TokenKind::Int(value) => ExprKind::Const(Const::Int(value)),
            TokenKind::Float(value) => ExprKind::Const(Const::Float(value)),
            TokenKind::Op("(") => {
                if self.skip_op(")") {
                    return Ok(Expr { line, kind: ExprKind::Tuple(Vec::new()) });
                }
                let inner = self.tuple(true, None)?;
                self.expect_op(")")?;
                return Ok(inner);
            }
            TokenKind::Op("[") => ExprKind::List(self.list_items()?),
            TokenKind::Op("{") => ExprKind::Dict(self.dict_items()?),
            _ => {
                self.at -= 1;
                return Err(self.invalid("expected an expression"));
            }
        };
        Ok(Expr { line, kind })
    }

    fn list_items(&mut self) -> Result<Vec<Expr>, TranspileError> {
        let mut items = Vec::new();
        while !self.skip_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.skip_op("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    fn dict_items(&mut self) -> Result<Vec<(Expr, Expr)>, TranspileError> {
        let mut items = Vec::new();
        while !self.skip_op("}") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.skip_op("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_op(":")?;
            items.push((key, self.expression()?));
        }
        Ok(items)
    }

    fn postfix(&mut self, mut node: Expr) -> Result<Expr, TranspileError> {
        loop {
            node = if self.is_op(".") || self.is_op("[") {
                self.subscript(node)?
            } else if self.is_op("(") {
                self.call(node)?
            } else {
                return Ok(node);
            };
            self.count()?;
        }
    }

    fn filters(&mut self, mut node: Expr) -> Result<Expr, TranspileError> {
        loop {
            let line = self.line();
            node = if self.skip_op("|") {
                let name = self.dotted_name()?;
                let args = if self.is_op("(") { self.args()? } else { Args::default() };
                Expr { line, kind: ExprKind::Filter(boxed(node), name, args) }
            } else if self.skip_name("is") {
                self.test(node, line)?
            } else if self.is_op("(") {
                self.call(node)?
            } else {
                return Ok(node);
            };
            self.count()?;
        }
    }

    fn subscript(&mut self, base: Expr) -> Result<Expr, TranspileError> {
        let line = self.line();
        let base = boxed(base);
        if self.skip_op(".") {
            let kind = match self.advance() {
                TokenKind::Name(name) => ExprKind::Attribute(base, name),
                TokenKind::Int(index) => {
                    let key = Expr { line, kind: ExprKind::Const(Const::Int(index)) };
                    ExprKind::Item(base, boxed(key))
                }
                _ => return Err(self.invalid("expected a name or number")),
            };
            return Ok(Expr { line, kind });
        }
        self.expect_op("[")?;
        let mut bounds: Vec<Option<Box<Expr>>> = Vec::new();
        let mut is_slice = false;
        let mut current = None;
        while !self.is_op("]") && !self.is_op(",") {
            if self.skip_op(":") {
                is_slice = true;
                bounds.push(current.take());
            } else if current.is_none() {
                current = Some(boxed(self.expression()?));
            } else {
                return Err(self.invalid("expected ]"));
            }
        }
        if self.is_op(",") {
            return Err(self.refused("a subscript with commas"));
        }
        self.expect_op("]")?;
        if !is_slice {
            let key = current.ok_or_else(|| self.refused("an empty subscript"))?;
            return Ok(Expr { line, kind: ExprKind::Item(base, key) });
        }
        bounds.push(current);
        bounds.resize_with(bounds.len().max(3), || None);
        let bounds: [Option<Box<Expr>>; 3] =
            bounds.try_into().map_err(|_| self.invalid("a slice with too many parts"))?;
        Ok(Expr { line, kind: ExprKind::Slice(base, bounds) })
    }

    fn call(&mut self, callee: Expr) -> Result<Expr, TranspileError> {
        let line = self.line();
        let args = self.args()?;
        Ok(Expr { line, kind: ExprKind::Call(boxed(callee), args) })
    }

    pub(super) fn args(&mut self) -> Result<Args, TranspileError> {
        let mut args = Args::default();
        let mut is_first = true;
        self.expect_op("(")?;
        while !self.is_op(")") {
            if !is_first {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            is_first = false;
            let has_dyn = args.dyn_args.is_some() || args.dyn_kwargs.is_some();
            if self.skip_op("*") {
                if has_dyn {
                    return Err(self.invalid("bad arguments"));
                }
                args.dyn_args = Some(boxed(self.expression()?));
            } else if self.skip_op("**") {
                if args.dyn_kwargs.is_some() {
                    return Err(self.invalid("bad arguments"));
                }
                args.dyn_kwargs = Some(boxed(self.expression()?));
            } else if matches!(self.next_kind(), TokenKind::Op("="))
                && matches!(self.kind(), TokenKind::Name(_))
            {
                if args.dyn_kwargs.is_some() {
                    return Err(self.invalid("bad arguments"));
                }
                let name = self.expect_name()?;
                self.expect_op("=")?;
                if args.keywords.iter().any(|(known, _)| *known == name) {
                    return Err(self.invalid(format!("the argument {name} is repeated")));
                }
                args.keywords.push((name, self.expression()?));
            } else {
                if has_dyn || !args.keywords.is_empty() {
                    return Err(self.invalid("bad arguments"));
                }
                args.positional.push(self.expression()?);
            }
        }
        self.expect_op(")")?;
        Ok(args)
    }

    fn test(&mut self, base: Expr, line: usize) -> Result<Expr, TranspileError> {
        let is_negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let mut args = Args::default();
        let has_argument = match self.kind() {
            TokenKind::Op("(") => {
                args = self.args()?;
                false
            }
            TokenKind::Name(name) if name == "is" => {
                return Err(self.invalid("tests cannot be chained with is"));
            }
            TokenKind::Name(name) => !matches!(name.as_str(), "else" | "or" | "and"),
            TokenKind::Str(_) | TokenKind::Int(_) | TokenKind::Float(_) => true,
            TokenKind::Op(op) => matches!(*op, "[" | "{"),
            _ => false,
        };
        if has_argument {
            let argument = self.nested(|parser| {
                let primary = parser.primary()?;
                parser.postfix(primary)
            })?;
            args.positional.push(argument);
        }
        let test = Expr { line, kind: ExprKind::Test(boxed(base), name, args) };
        if is_negated {
            return Ok(Expr { line, kind: ExprKind::Unary(UnaryOp::Not, boxed(test)) });
        }
        Ok(test)
    }
}
