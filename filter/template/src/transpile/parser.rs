//! Statements, after Jinja2's grammar.
//!
//! In: tokens. Out: the tree. Nesting is bounded by [`DEPTH_MAX`] and runs of
//! operators by [`RUN_MAX`]; what exceeds them is refused.

mod expr;

use super::TranspileError;
use super::ast::{BlockFilter, Expr, ExprKind, Params, Stmt, Target};
use super::lexer::{Token, TokenKind};

/// Deepest nesting of expressions and blocks. Official templates stay below 20.
pub(super) const DEPTH_MAX: usize = 40;

/// Most operators, postfixes and filters on the way from a statement down to a leaf. Runs of them nest
/// to the left, so this bounds the tree's depth.
pub(super) const RUN_MAX: usize = 200;

/// The statements of a template.
pub(super) fn parse(tokens: Vec<Token>) -> Result<Vec<Stmt>, TranspileError> {
    let mut parser = Parser { tokens, at: 0, depth: 0, runs: 0, loops: 0, is_captured: false };
    parser.body(&[])
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    /// Operators in the runs that are open around the current expression.
    runs: usize,
    /// Loops around the current statement within its macro or call block.
    loops: usize,
    /// Whether a block that `break` must not leave stands between the current statement and its loop.
    is_captured: bool,
}

impl Parser {
    fn kind(&self) -> &TokenKind {
        self.tokens.get(self.at).map_or(&TokenKind::End, |token| &token.kind)
    }

    fn next_kind(&self) -> &TokenKind {
        self.tokens.get(self.at + 1).map_or(&TokenKind::End, |token| &token.kind)
    }

    fn line(&self) -> usize {
        let token = self.tokens.get(self.at).or_else(|| self.tokens.last());
        token.map_or(0, |token| token.line)
    }

    fn invalid(&self, reason: impl Into<String>) -> TranspileError {
        TranspileError::invalid(self.line(), reason)
    }

    fn refused(&self, reason: impl Into<String>) -> TranspileError {
        TranspileError::refused(self.line(), reason)
    }

    fn advance(&mut self) -> TokenKind {
        let kind = self.kind().clone();
        self.at += 1;
        kind
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.kind(), TokenKind::Name(found) if found == name)
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.kind(), TokenKind::Op(found) if *found == op)
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    fn expect_op(&mut self, op: &str) -> Result<(), TranspileError> {
        if self.skip_op(op) {
            return Ok(());
        }
        Err(self.invalid(format!("expected {op}")))
    }

    fn expect_name(&mut self) -> Result<String, TranspileError> {
        match self.advance() {
            TokenKind::Name(name) => Ok(name),
            _ => Err(self.invalid("expected a name")),
        }
    }

    fn expect_block_end(&mut self) -> Result<(), TranspileError> {
        match self.advance() {
            TokenKind::BlockEnd => Ok(()),
            _ => Err(self.invalid("expected the end of the tag")),
        }
    }

    /// Runs `parse` one level deeper.
    fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, TranspileError>,
    ) -> Result<T, TranspileError> {
        if self.depth >= DEPTH_MAX {
            return Err(self.refused("nested too deep"));
        }
        self.depth += 1;
        let runs = self.runs;
        let parsed = parse(self);
        self.runs = runs;
        self.depth -= 1;
        parsed
    }

    /// Statements up to one of the tags in `ends`, whose name is the current token then.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Stmt>, TranspileError> {
        let mut body = Vec::new();
        loop {
            match self.advance() {
                TokenKind::End if ends.is_empty() => return Ok(body),
                TokenKind::End => {
                    return Err(self.invalid(format!("expected {}", ends.join(" or "))));
                }
                TokenKind::Text(text) => body.push(Stmt::Text(text)),
                TokenKind::PrintBegin => {
                    body.push(Stmt::Print(self.tuple(true, None)?));
                    if self.advance() != TokenKind::PrintEnd {
                        return Err(self.invalid("expected the end of the print tag"));
                    }
                }
                TokenKind::BlockBegin => {
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    self.nested(|parser| parser.statement(&mut body))?;
                    self.expect_block_end()?;
                }
                _ => return Err(self.invalid("unexpected token")),
            }
        }
    }

    /// The body of a block, whose start tag ends here and whose end tag is consumed up to its own end.
    fn block(&mut self, end: &str) -> Result<Vec<Stmt>, TranspileError> {
        let body = self.open_body(&[end])?;
        self.at += 1;
        Ok(body)
    }

    /// The end of a start tag, and the body after it.
    fn open_body(&mut self, ends: &[&str]) -> Result<Vec<Stmt>, TranspileError> {
        self.skip_op(":");
        self.expect_block_end()?;
        self.body(ends)
    }

    fn statement(&mut self, body: &mut Vec<Stmt>) -> Result<(), TranspileError> {
        let line = self.line();
        let TokenKind::Name(tag) = self.advance() else {
            return Err(self.invalid("expected a tag name"));
        };
        let statement = match tag.as_str() {
            "set" => self.set(line)?,
            "for" => self.for_loop()?,
            "if" => self.if_block()?,
            "with" => self.with(line)?,
            "macro" => self.macro_block(line)?,
            "call" => self.call_block(line)?,
            "filter" => {
                let filters = self.block_filters(true)?;
                Stmt::FilterBlock { filters, body: self.captured("endfilter")? }
            }
            // A call block in transformers, so loops end at it.
            "generation" => Stmt::Generation(self.outside_loops(|p| p.block("endgeneration"))?),
            "break" | "continue" if self.loops == 0 => {
                return Err(self.invalid(format!("{tag} outside of a loop")));
            }
            "break" | "continue" if self.is_captured => {
                // minijinja would keep the block open.
                return Err(self.refused(format!(
                    "{tag} within a set, filter or with block, or the else of a loop"
                )));
            }
            "break" => Stmt::Break,
            "continue" => Stmt::Continue,
            "print" => {
                let mut is_first = true;
                while *self.kind() != TokenKind::BlockEnd {
                    if !is_first {
                        self.expect_op(",")?;
                    }
                    is_first = false;
                    body.push(Stmt::Print(self.expression()?));
                }
                return Ok(());
            }
            "extends" | "include" | "import" | "from" | "block" | "autoescape" => {
                return Err(TranspileError::refused(line, format!("the tag {tag}")));
            }
            _ => return Err(TranspileError::invalid(line, format!("unknown tag {tag}"))),
        };
        body.push(statement);
        Ok(())
    }

    /// Runs `parse` where `break` and `continue` do not reach the loops outside.
    fn outside_loops<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, TranspileError>,
    ) -> Result<T, TranspileError> {
        let loops = std::mem::take(&mut self.loops);
        let is_captured = std::mem::take(&mut self.is_captured);
        let parsed = parse(self);
        self.loops = loops;
        self.is_captured = is_captured;
        parsed
    }

    /// The body of a block that `break` must not leave.
    fn captured(&mut self, end: &str) -> Result<Vec<Stmt>, TranspileError> {
        let is_captured = std::mem::replace(&mut self.is_captured, true);
        let body = self.block(end);
        self.is_captured = is_captured;
        body
    }

    fn set(&mut self, line: usize) -> Result<Stmt, TranspileError> {
        let target = self.target(true, &[])?;
        if self.skip_op("=") {
            return Ok(Stmt::Set(target, self.tuple(true, None)?));
        }
        let filters = self.block_filters(false)?;
        let body = self.captured("endset")?;
        Ok(Stmt::SetBlock { line, target, filters, body })
    }

    fn for_loop(&mut self) -> Result<Stmt, TranspileError> {
        let target = self.target(false, &["in"])?;
        if !self.skip_name("in") {
            return Err(self.invalid("expected in"));
        }
        let iter = self.tuple(false, Some("recursive"))?;
        let test = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let is_recursive = self.skip_name("recursive");
        self.loops += 1;
        let is_captured = std::mem::take(&mut self.is_captured);
        let body = self.open_body(&["endfor", "else"]);
        self.is_captured = is_captured;
        self.loops -= 1;
        let body = body?;
        let has_else = self.is_name("else");
        self.at += 1;
        let otherwise = if has_else { self.captured("endfor")? } else { Vec::new() };
        Ok(Stmt::For { target, iter, test, is_recursive, body, otherwise })
    }

    fn if_block(&mut self) -> Result<Stmt, TranspileError> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(false, None)?;
            branches.push((test, self.open_body(&["elif", "else", "endif"])?));
            if self.skip_name("elif") {
                continue;
            }
            let has_else = self.is_name("else");
            self.at += 1;
            let otherwise = if has_else { self.block("endif")? } else { Vec::new() };
            return Ok(Stmt::If { branches, otherwise });
        }
    }

    fn with(&mut self, line: usize) -> Result<Stmt, TranspileError> {
        let mut values = Vec::new();
        while *self.kind() != TokenKind::BlockEnd {
            if !values.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target(false, &[])?;
            self.expect_op("=")?;
            values.push((target, self.expression()?));
        }
        let body = self.captured("endwith")?;
        Ok(Stmt::With { line, values, body })
    }

    fn macro_block(&mut self, line: usize) -> Result<Stmt, TranspileError> {
        let name = self.expect_name()?;
        let params = self.params()?;
        let body = self.outside_loops(|parser| parser.block("endmacro"))?;
        Ok(Stmt::Macro { line, name, params, body })
    }

    fn call_block(&mut self, line: usize) -> Result<Stmt, TranspileError> {
        let params = if self.is_op("(") { self.params()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(call.kind, ExprKind::Call(..)) {
            return Err(TranspileError::invalid(line, "expected a call"));
        }
        let body = self.outside_loops(|parser| parser.block("endcall"))?;
        Ok(Stmt::CallBlock { line, params, call, body })
    }

    fn params(&mut self) -> Result<Params, TranspileError> {
        let mut params: Params = Vec::new();
        self.expect_op("(")?;
        while !self.is_op(")") {
            if !params.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.expect_name()?;
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            if default.is_none() && params.last().is_some_and(|(_, default)| default.is_some()) {
                return Err(self.invalid("a parameter without a default follows one with"));
            }
            params.push((name, default));
        }
        self.expect_op(")")?;
        Ok(params)
    }

    /// `|a|b(x)` of a set block; of a filter block the first bar is left out.
    fn block_filters(&mut self, is_inline: bool) -> Result<Vec<BlockFilter>, TranspileError> {
        let mut filters = Vec::new();
        while (is_inline && filters.is_empty()) || self.skip_op("|") {
            let line = self.line();
            let name = self.dotted_name()?;
            let args = if self.is_op("(") { self.args()? } else { Default::default() };
            filters.push(BlockFilter { line, name, args });
            if filters.len() > RUN_MAX {
                return Err(self.refused("too many filters"));
            }
        }
        Ok(filters)
    }

    fn dotted_name(&mut self) -> Result<String, TranspileError> {
        let name = self.expect_name()?;
        if self.is_op(".") {
            return Err(self.refused("a name with dots for a filter or test"));
        }
        Ok(name)
    }

    /// What `set`, `for` or `with` assigns to: names, with commas and parentheses.
    fn target(&mut self, allows_namespace: bool, ends: &[&str]) -> Result<Target, TranspileError> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            let is_end = matches!(
                self.kind(),
                TokenKind::BlockEnd | TokenKind::PrintEnd | TokenKind::Op(")")
            );
            if is_end || ends.iter().any(|end| self.is_name(end)) {
                break;
            }
            targets.push(self.nested(|parser| parser.single_target(allows_namespace))?);
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        match targets.pop() {
            Some(target) if !is_tuple => Ok(target),
            Some(target) => {
                targets.push(target);
                Ok(Target::Tuple(targets))
            }
            None => Err(self.invalid("expected a target of the assignment")),
        }
    }

    fn single_target(&mut self, allows_namespace: bool) -> Result<Target, TranspileError> {
        if self.skip_op("(") {
            let target = self.target(false, &[])?;
            self.expect_op(")")?;
            return Ok(target);
        }
        let name = self.expect_name()?;
        if matches!(name.as_str(), "true" | "false" | "none" | "True" | "False" | "None") {
            return Err(self.invalid("cannot assign to a literal"));
        }
        if allows_namespace && self.skip_op(".") {
            return Ok(Target::Namespace(name, self.expect_name()?));
        }
        Ok(Target::Name(name))
    }

    /// An expression, or several with commas.
    fn tuple(&mut self, with_conditional: bool, end: Option<&str>) -> Result<Expr, TranspileError> {
        let line = self.line();
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            let is_end = matches!(
                self.kind(),
                TokenKind::BlockEnd | TokenKind::PrintEnd | TokenKind::Op(")")
            );
            if is_end || end.is_some_and(|end| self.is_name(end)) {
                break;
            }
            items.push(if with_conditional { self.expression()? } else { self.nested(Self::or)? });
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        if is_tuple {
            return Ok(Expr { line, kind: ExprKind::Tuple(items) });
        }
        items.pop().ok_or_else(|| self.invalid("expected an expression"))
    }
}
