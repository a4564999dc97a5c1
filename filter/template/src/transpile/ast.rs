//! The tree of a template, as Jinja2's parser builds it.

/// A literal.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Const {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
}

/// Binary operators of arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

/// Operators of comparison; they chain as in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// Prefix operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnaryOp {
    Not,
    Neg,
    Pos,
}

/// Arguments of a call, a filter or a test.
#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Expr>,
    pub(super) keywords: Vec<(String, Expr)>,
    /// `*args`.
    pub(super) dyn_args: Option<Box<Expr>>,
    /// `**kwargs`.
    pub(super) dyn_kwargs: Option<Box<Expr>>,
}

/// An expression with the line it starts at.
#[derive(Debug)]
pub(super) struct Expr {
    pub(super) line: usize,
    pub(super) kind: ExprKind,
}

/// What an expression is.
#[derive(Debug)]
pub(super) enum ExprKind {
    Const(Const),
    Name(String),
    Tuple(Vec<Expr>),
    List(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Unary(UnaryOp, Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    /// `~`, all operands of one run.
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    /// `then if test else otherwise`.
    Conditional {
        test: Box<Expr>,
        then: Box<Expr>,
        otherwise: Option<Box<Expr>>,
    },
    /// `base.name`.
    Attribute(Box<Expr>, String),
    /// `base[key]`.
    Item(Box<Expr>, Box<Expr>),
    /// `base[start:stop:step]`.
    Slice(Box<Expr>, [Option<Box<Expr>>; 3]),
    Call(Box<Expr>, Args),
    /// `base|name(args)`.
    Filter(Box<Expr>, String, Args),
    /// `base is name(args)`.
    Test(Box<Expr>, String, Args),
}

/// What `set` and `for` assign to.
#[derive(Debug)]
pub(super) enum Target {
    Name(String),
    Tuple(Vec<Target>),
    /// `namespace.attribute`.
    Namespace(String, String),
}

/// A filter of a filter block or a set block; the base is the block's text.
#[derive(Debug)]
pub(super) struct BlockFilter {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) args: Args,
}

/// Parameters of a macro or call block, with their defaults.
pub(super) type Params = Vec<(String, Option<Expr>)>;

/// A statement.
#[derive(Debug)]
pub(super) enum Stmt {
    Text(String),
    Print(Expr),
    Set(Target, Expr),
    SetBlock {
        line: usize,
        target: Target,
        filters: Vec<BlockFilter>,
        body: Vec<Stmt>,
    },
    For {
        target: Target,
        iter: Expr,
        test: Option<Expr>,
        is_recursive: bool,
        body: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    If {
        branches: Vec<(Expr, Vec<Stmt>)>,
        otherwise: Vec<Stmt>,
    },
    With {
        line: usize,
        values: Vec<(Target, Expr)>,
        body: Vec<Stmt>,
    },
    Macro {
        line: usize,
        name: String,
        params: Params,
        body: Vec<Stmt>,
    },
    CallBlock {
        line: usize,
        params: Params,
        call: Expr,
        body: Vec<Stmt>,
    },
    FilterBlock {
        filters: Vec<BlockFilter>,
        body: Vec<Stmt>,
    },
    /// `{% generation %}`: marks text for training, and renders its body.
    Generation(Vec<Stmt>),
    Break,
    Continue,
}

impl Args {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.positional.is_empty()
            && self.keywords.is_empty()
            && self.dyn_args.is_none()
            && self.dyn_kwargs.is_none()
    }

    fn exprs(&self) -> Vec<&Expr> {
        let keywords = self.keywords.iter().map(|(_, value)| value);
        let dynamic = self.dyn_args.iter().chain(&self.dyn_kwargs).map(|value| &**value);
        self.positional.iter().chain(keywords).chain(dynamic).collect()
    }
}

impl Expr {
    /// The variable's name, if this is one.
    pub(super) fn name(&self) -> Option<&str> {
        match &self.kind {
            ExprKind::Name(name) => Some(name),
            _ => None,
        }
    }

    /// The text, if this is a string literal.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            ExprKind::Const(Const::Str(text)) => Some(text),
            _ => None,
        }
    }

    /// The filter's name, if this is one.
    pub(super) fn filter_name(&self) -> Option<&str> {
        match &self.kind {
            ExprKind::Filter(_, name, _) => Some(name),
            _ => None,
        }
    }

    /// The expressions right beneath this one.
    fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            ExprKind::Const(_) | ExprKind::Name(_) => Vec::new(),
            ExprKind::Tuple(items) | ExprKind::List(items) | ExprKind::Concat(items) => {
                items.iter().collect()
            }
            ExprKind::Dict(items) => items.iter().flat_map(|(key, value)| [key, value]).collect(),
            ExprKind::Unary(_, operand) | ExprKind::Attribute(operand, _) => vec![operand],
            ExprKind::Binary(_, left, right)
            | ExprKind::And(left, right)
            | ExprKind::Or(left, right)
            | ExprKind::Item(left, right) => vec![left, right],
            ExprKind::Compare(first, rest) => {
                std::iter::once(&**first).chain(rest.iter().map(|(_, expr)| expr)).collect()
            }
            ExprKind::Conditional { test, then, otherwise } => {
                let otherwise = otherwise.iter().map(|expr| &**expr);
                [&**then, &**test].into_iter().chain(otherwise).collect()
            }
            ExprKind::Slice(base, bounds) => {
                let bounds = bounds.iter().flatten().map(|expr| &**expr);
                std::iter::once(&**base).chain(bounds).collect()
            }
            ExprKind::Call(base, args)
            | ExprKind::Filter(base, _, args)
            | ExprKind::Test(base, _, args) => {
                std::iter::once(&**base).chain(args.exprs()).collect()
            }
        }
    }

    /// Calls `see` on this expression and all beneath it. Uses a stack on the heap.
    pub(super) fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a Expr)) {
        let mut pending = vec![self];
        while let Some(expr) = pending.pop() {
            see(expr);
            pending.extend(expr.children());
        }
    }
}

impl Stmt {
    /// The bodies right beneath this statement.
    pub(super) fn bodies(&self) -> Vec<&[Stmt]> {
        match self {
            Self::Text(_) | Self::Print(_) | Self::Set(..) | Self::Break | Self::Continue => {
                Vec::new()
            }
            Self::For { body, otherwise, .. } => vec![body, otherwise],
            Self::If { branches, otherwise } => {
                let branches = branches.iter().map(|(_, body)| body.as_slice());
                branches.chain([otherwise.as_slice()]).collect()
            }
            Self::SetBlock { body, .. }
            | Self::With { body, .. }
            | Self::Macro { body, .. }
            | Self::CallBlock { body, .. }
            | Self::FilterBlock { body, .. }
            | Self::Generation(body) => vec![body],
        }
    }

    /// The expressions right in this statement.
    pub(super) fn exprs(&self) -> Vec<&Expr> {
        let filter_args = self.filters().iter().flat_map(|filter| filter.args.exprs());
        let own: Vec<&Expr> = match self {
            Self::Print(value) | Self::Set(_, value) => vec![value],
            Self::For { iter, test, .. } => std::iter::once(iter).chain(test).collect(),
            Self::If { branches, .. } => branches.iter().map(|(test, _)| test).collect(),
            Self::With { values, .. } => values.iter().map(|(_, value)| value).collect(),
            Self::Macro { params, .. } => params.iter().filter_map(|(_, d)| d.as_ref()).collect(),
            Self::CallBlock { params, call, .. } => {
                let defaults = params.iter().filter_map(|(_, default)| default.as_ref());
                defaults.chain([call]).collect()
            }
            _ => Vec::new(),
        };
        own.into_iter().chain(filter_args).collect()
    }

    /// The filters of a filter block or set block.
    pub(super) fn filters(&self) -> &[BlockFilter] {
        match self {
            Self::SetBlock { filters, .. } | Self::FilterBlock { filters, .. } => filters,
            _ => &[],
        }
    }
}
