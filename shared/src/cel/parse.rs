//! From text to a tree, and from errors with their places to a report as `cel-go` prints it.

use cel::Env;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue, MapEntryExpr,
    MapExpr, SourceInfo,
};
use cel::common::types::{CelBool, CelInt};
use cel::parser::{Macro, MacroExprHelper, ParseError};

use super::environment::Extras;
use super::error::CompileError;
use super::limits::{MAX_EXPRESSION, MAX_NESTING};

/// The stack of the parser, which descends into expressions: enough for [`MAX_NESTING`].
const STACK_BYTES: usize = 128 << 20;
/// Longest chain of operators or selections, which makes a tree as deep.
const MAX_CHAIN: usize = 5_000;
/// The stack each link of a chain takes.
const LINK_BYTES: usize = 32 << 10;

/// Longest line of an expression that is shown with what is wrong in it, in bytes.
const MAX_SHOWN: usize = 16 << 10;

/// A parsed expression.
pub(super) struct Parsed<'s> {
    pub(super) root: IdedExpr,
    pub(super) source: &'s str,
    places: SourceInfo,
}

/// Runs on a thread with a stack that is large enough for an expression, whoever calls.
pub(super) fn on_a_large_stack<T: Send>(source: &str, work: impl FnOnce() -> T + Send) -> Result<T, CompileError> {
    let bytes = STACK_BYTES + chain(source).min(MAX_CHAIN) * LINK_BYTES;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cel".into()).stack_size(bytes);
        let running = thread.spawn_scoped(scope, work).map_err(|e| CompileError::Unavailable(e.to_string()))?;
        running.join().map_err(|_| CompileError::Panicked)
    })
}

/// Parses an expression.
pub(super) fn parse(source: &str, extras: Extras) -> Result<Parsed<'_>, CompileError> {
    if source.len() > MAX_EXPRESSION {
        return Err(CompileError::TooLong(source.chars().count()));
    }
    if chain(source) > MAX_CHAIN {
        return Err(CompileError::TooDeep);
    }
    let parser = environment(extras)?.parser().max_recursion_depth(MAX_NESTING);
    match parser.parse_with_source_info(source) {
        Ok((root, places)) => Ok(Parsed { root, source, places }),
        Err(errors) => {
            let at = |n: isize| usize::try_from(n).unwrap_or(1).max(1);
            // What is incomplete is so because of something else.
            let told = errors.errors.iter().filter(|e| !e.msg.starts_with("Incomplete ") || errors.errors.len() == 1);
            let lines = told.map(|e| problem(source, (at(e.pos.0), at(e.pos.1)), &expected(&e.msg)));
            Err(CompileError::Report(lines.collect::<Vec<_>>().join("\n")))
        }
    }
}

/// An upper bound for the depth of the tree: whatever can be an operator, a selection or an index, in texts too, so that
/// nothing can hide.
fn chain(source: &str) -> usize {
    let links = b"+-*/%.[?<>=!";
    let marks = source.bytes().filter(|b| links.contains(b)).count();
    marks + source.as_bytes().windows(2).filter(|w| w == b"in").count()
}

impl Parsed<'_> {
    /// A problem at a part of the expression.
    pub(super) fn problem(&self, id: u64, message: &str) -> String {
        let start = self.source.floor_char_boundary(self.start(id) as usize);
        let before = &self.source[..start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        problem(self.source, (line, column), message)
    }

    /// Offset at which an expression starts.
    pub(super) fn start(&self, id: u64) -> u32 {
        let start = self.places.offset_for(id).map_or(0, |(start, _)| start);
        u32::try_from(sign(self.source, start as usize)).unwrap_or(start)
    }
}

/// Tokens that may follow a value, in ANTLR's order.
const GOES_ON: [&str; 18] = [
    "'=='", "'!='", "'in'", "'<'", "'<='", "'>='", "'>'", "'&&'", "'||'", "'['", "'.'", "','", "'-'", "'?'", "'+'",
    "'*'", "'/'", "'%'",
];

/// A syntax error as upstream's parser words it: where a value could go on or end, it tells how it could end.
fn expected(message: &str) -> String {
    let split = message.split_once(" expecting {").and_then(|(what, set)| Some((what, set.strip_suffix('}')?)));
    let Some((what, set)) = split.filter(|(_, set)| set.contains("'=='")) else { return message.to_owned() };
    let ends: Vec<&str> = set.split(", ").filter(|token| !GOES_ON.contains(token)).collect();
    match ends.as_slice() {
        [end] => format!("{what} expecting {end}"),
        _ => message.to_owned(),
    }
}

/// Offset of a number's sign, or of the number itself without one.
fn sign(source: &str, start: usize) -> usize {
    let Some((before, number)) = source.split_at_checked(start) else { return start };
    let Some(before) = before.trim_end().strip_suffix('-').filter(|_| number.starts_with(|c: char| c.is_ascii_digit()))
    else {
        return start;
    };
    // Behind something that has a value it is an operator.
    let value = |c: char| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '}' | '\'' | '"' | '`');
    if before.trim_end().ends_with(value) { start } else { before.len() }
}

/// One problem with its place in the source.
fn problem(source: &str, (line, column): (usize, usize), message: &str) -> String {
    let mut text = format!("ERROR: <input>:{line}:{column}: {message}");
    if let Some(shown) = source.split('\n').nth(line - 1).filter(|shown| shown.len() <= MAX_SHOWN) {
        let shown = shown.replace('\t', " ");
        // What is wider than a letter is pointed at by what is as wide.
        let mark = |c: char, wide: char, narrow: char| if c.is_ascii() { narrow } else { wide };
        let mut chars = shown.chars();
        let mut below: String = chars.by_ref().take(column - 1).map(|c| mark(c, '．', '.')).collect();
        below.push(chars.next().map_or('^', |c| mark(c, '＾', '^')));
        text.push_str(&format!("\n | {shown}\n | {below}"));
    }
    text
}

type Expansion = Result<Option<IdedExpr>, ParseError>;

/// The macros: those of the language, of optional values, of lists, and those over two variables.
fn environment(extras: Extras) -> Result<Env, CompileError> {
    // The standard macros come with the standard environment, which is made for each expression and forgotten.
    let mut env = Env::stdlib();
    let mut all = vec![
        Macro::receiver("sortBy", 2, sort_by),
        Macro::receiver("all", 3, |m, t, a| two(m, t, a, all)),
        Macro::receiver("exists", 3, |m, t, a| two(m, t, a, exists)),
        Macro::receiver("existsOne", 3, |m, t, a| two(m, t, a, exists_one)),
        Macro::receiver("exists_one", 3, |m, t, a| two(m, t, a, exists_one)),
        Macro::receiver("transformList", 3, |m, t, a| two(m, t, a, transform_list)),
        Macro::receiver("transformList", 4, |m, t, a| two(m, t, a, transform_list)),
        Macro::receiver("transformMap", 3, |m, t, a| two(m, t, a, transform_map)),
        Macro::receiver("transformMap", 4, |m, t, a| two(m, t, a, transform_map)),
        Macro::receiver("transformMapEntry", 3, |m, t, a| two(m, t, a, transform_entry)),
        Macro::receiver("transformMapEntry", 4, |m, t, a| two(m, t, a, transform_entry)),
    ];
    if extras.bind {
        all.push(Macro::receiver("bind", 3, bind));
    }
    for one in all {
        env.add_macro(one).map_err(|e| CompileError::Macros(e.to_string()))?;
    }
    Ok(env)
}

const RESULT: &str = "@result";

fn ident(make: &mut MacroExprHelper<'_>, name: &str) -> IdedExpr {
    make.next_expr(Expr::Ident(name.to_owned()))
}

fn truth(make: &mut MacroExprHelper<'_>, value: bool) -> IdedExpr {
    make.next_expr(Expr::Literal(LiteralValue::Boolean(CelBool::from(value))))
}

fn number(make: &mut MacroExprHelper<'_>, value: i64) -> IdedExpr {
    make.next_expr(Expr::Literal(LiteralValue::Int(CelInt::from(value))))
}

fn call(make: &mut MacroExprHelper<'_>, name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    make.next_expr(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

fn name_of(make: &MacroExprHelper<'_>, e: &IdedExpr) -> Result<String, ParseError> {
    match &e.expr {
        Expr::Ident(name) => Ok(name.clone()),
        _ => Err(make.new_error(e.id, "argument must be a simple name")),
    }
}

/// A name for a value, as a loop that never runs.
fn bound(make: &mut MacroExprHelper<'_>, name: &str, value: IdedExpr, result: IdedExpr) -> IdedExpr {
    let iter_range = make.next_expr(Expr::List(ListExpr::default()));
    let loop_cond = truth(make, false);
    let loop_step = ident(make, name);
    make.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range,
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: name.to_owned(),
        accu_init: value,
        loop_cond,
        loop_step,
        result,
    })))
}

fn bind(make: &mut MacroExprHelper<'_>, target: &mut Option<IdedExpr>, args: &mut Vec<IdedExpr>) -> Expansion {
    if !matches!(target.as_ref().map(|t| &t.expr), Some(Expr::Ident(name)) if name == "cel") {
        return Ok(None);
    }
    let Expr::Ident(name) = args[0].expr.clone() else {
        return Err(make.new_error(args[0].id, "cel.bind() variable names must be simple identifiers"));
    };
    let (Some(result), Some(value)) = (args.pop(), args.pop()) else { return Ok(None) };
    Ok(Some(bound(make, &name, value, result)))
}

/// `list.sortBy(x, key)` sorts by keys computed once.
fn sort_by(make: &mut MacroExprHelper<'_>, target: &mut Option<IdedExpr>, args: &mut Vec<IdedExpr>) -> Expansion {
    const INPUT: &str = "@__sortBy_input__";
    if let Some(target) =
        target.as_ref().filter(|t| matches!(t.expr, Expr::Literal(_) | Expr::Map(_) | Expr::Struct(_)))
    {
        let why = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
        return Err(make.new_error(target.id, why));
    }
    let Expr::Ident(name) = args[0].expr.clone() else {
        return Err(make.new_error(args[0].id, "argument is not an identifier"));
    };
    let (Some(key), Some(target)) = (args.pop(), target.take()) else { return Ok(None) };
    let accu_init = make.next_expr(Expr::List(ListExpr::default()));
    let accumulator = ident(make, RESULT);
    let one = make.next_expr(Expr::List(ListExpr::new(vec![key])));
    let loop_step = call(make, "_+_", vec![accumulator, one]);
    let iter_range = ident(make, INPUT);
    let (loop_cond, result) = (truth(make, true), ident(make, RESULT));
    let keys = make.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range,
        iter_var: name,
        iter_var2: None,
        accu_var: RESULT.to_owned(),
        accu_init,
        loop_cond,
        loop_step,
        result,
    })));
    let receiver = ident(make, INPUT);
    let sorted = make.next_expr(Expr::Call(CallExpr {
        func_name: "@sortByAssociatedKeys".to_owned(),
        target: Some(Box::new(receiver)),
        args: vec![keys],
    }));
    Ok(Some(bound(make, INPUT, target, sorted)))
}

/// The parts of a loop over two variables: start, condition, step, result.
struct Loop {
    init: IdedExpr,
    condition: IdedExpr,
    step: IdedExpr,
    result: IdedExpr,
}

/// A loop over two variables; what it does with the other arguments is told by `body`.
fn two(
    make: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
    body: fn(&mut MacroExprHelper<'_>, &str, Vec<IdedExpr>) -> Loop,
) -> Expansion {
    let (first, second) = (name_of(make, &args[0])?, name_of(make, &args[1])?);
    if first == second {
        return Err(make.new_error(args[1].id, format!("duplicate variable name: {first}")));
    }
    let Some(range) = target.take() else { return Ok(None) };
    let rest = args.split_off(2);
    let Loop { init, condition, step, result } = body(make, &first, rest);
    Ok(Some(make.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: range,
        iter_var: first,
        iter_var2: Some(second),
        accu_var: RESULT.to_owned(),
        accu_init: init,
        loop_cond: condition,
        loop_step: step,
        result,
    })))))
}

/// The last argument, and the one before it when there are two: what is made, and for which elements.
fn parts(mut rest: Vec<IdedExpr>) -> (IdedExpr, Option<IdedExpr>) {
    let made = rest.pop().unwrap_or_default();
    (made, rest.pop())
}

fn all(make: &mut MacroExprHelper<'_>, _: &str, rest: Vec<IdedExpr>) -> Loop {
    let init = truth(make, true);
    let so_far = ident(make, RESULT);
    let condition = call(make, "@not_strictly_false", vec![so_far]);
    let so_far = ident(make, RESULT);
    let step = call(make, "_&&_", vec![so_far, parts(rest).0]);
    Loop { init, condition, step, result: ident(make, RESULT) }
}

fn exists(make: &mut MacroExprHelper<'_>, _: &str, rest: Vec<IdedExpr>) -> Loop {
    let init = truth(make, false);
    let so_far = ident(make, RESULT);
    let not = call(make, "!_", vec![so_far]);
    let condition = call(make, "@not_strictly_false", vec![not]);
    let so_far = ident(make, RESULT);
    let step = call(make, "_||_", vec![so_far, parts(rest).0]);
    Loop { init, condition, step, result: ident(make, RESULT) }
}

fn exists_one(make: &mut MacroExprHelper<'_>, _: &str, rest: Vec<IdedExpr>) -> Loop {
    let (init, condition) = (number(make, 0), truth(make, true));
    let (so_far, one) = (ident(make, RESULT), number(make, 1));
    let more = call(make, "_+_", vec![so_far, one]);
    let same = ident(make, RESULT);
    let step = call(make, "_?_:_", vec![parts(rest).0, more, same]);
    let (found, one) = (ident(make, RESULT), number(make, 1));
    Loop { init, condition, step, result: call(make, "_==_", vec![found, one]) }
}

/// `filter ? step : accumulator`, or the step alone.
fn filtered(make: &mut MacroExprHelper<'_>, filter: Option<IdedExpr>, step: IdedExpr) -> IdedExpr {
    let Some(filter) = filter else { return step };
    let same = ident(make, RESULT);
    call(make, "_?_:_", vec![filter, step, same])
}

fn transform_list(make: &mut MacroExprHelper<'_>, _: &str, rest: Vec<IdedExpr>) -> Loop {
    let (made, filter) = parts(rest);
    let init = make.next_expr(Expr::List(ListExpr::default()));
    let so_far = ident(make, RESULT);
    let one = make.next_expr(Expr::List(ListExpr::new(vec![made])));
    let step = call(make, "_+_", vec![so_far, one]);
    let step = filtered(make, filter, step);
    Loop { init, condition: truth(make, true), step, result: ident(make, RESULT) }
}

/// A map from the key of each element, which is the first variable, to what is made of it.
fn transform_map(make: &mut MacroExprHelper<'_>, first: &str, rest: Vec<IdedExpr>) -> Loop {
    let (made, filter) = parts(rest);
    let init = make.next_expr(Expr::Map(MapExpr::default()));
    let so_far = ident(make, RESULT);
    let key = ident(make, first);
    let step = call(make, "cel.@mapInsert", vec![so_far, key, made]);
    let step = filtered(make, filter, step);
    Loop { init, condition: truth(make, true), step, result: ident(make, RESULT) }
}

fn transform_entry(make: &mut MacroExprHelper<'_>, _: &str, rest: Vec<IdedExpr>) -> Loop {
    let (made, filter) = parts(rest);
    let init = make.next_expr(Expr::Map(MapExpr::default()));
    let so_far = ident(make, RESULT);
    let step = call(make, "cel.@mapInsert", vec![so_far, made]);
    let step = filtered(make, filter, step);
    Loop { init, condition: truth(make, true), step, result: ident(make, RESULT) }
}

/// The entries of a map literal.
pub(super) fn pairs(entries: &[IdedEntryExpr]) -> impl Iterator<Item = &MapEntryExpr> {
    entries.iter().filter_map(|e| match &e.expr {
        EntryExpr::MapEntry(entry) => Some(entry),
        EntryExpr::StructField(_) => None,
    })
}
