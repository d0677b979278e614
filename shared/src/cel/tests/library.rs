//! Tests of the function library against its documentation.

use super::run;

fn all_true(expressions: &[&str]) {
    for expression in expressions {
        assert_eq!(run(expression), Ok(true), "{expression}");
    }
}

#[test]
fn the_language() {
    all_true(&[
        "1 + 2 * 3 == 7 && 7 / 2 == 3 && 7 % 4 == 3 && -(1) < 0",
        "1u + 2u == 3u && 1.5 * 2.0 == 3.0",
        "dyn(1) == 1.0 && dyn(1u) == 1 && 2 > 1.5 && 1u < 2",
        "b'ab' + b'c' == b'abc' && size(b'abc') == 3",
        "'é'.size() == 1 && 'a' < 'b'",
        "[1, 2] + [3] == [1, 2, 3] && [1, 2][1] == 2",
        "{'a': 1}.a == 1 && {'a': 1}['a'] == 1 && 'a' in {'a': 1} && !('b' in {'a': 1})",
        "{1: 'x'}[1] == 'x' && {1: 'x'}[dyn(1u)] == 'x' && {true: 1}[true] == 1",
        "has(self.name) && !has(self.missing) && has(object.any.x)",
        "self.any.x[0] == 1 && self.any.x[1] == '2'",
        "int('42') == 42 && int(3.9) == 3 && int(7u) == 7 && uint(3) == 3u && double('1.5') == 1.5",
        "string(1) == '1' && string(1.5) == '1.5' && string(true) == 'true' && string(b'x') == 'x'",
        "string(1e21) == '1e+21' && string(0.00001) == '1e-05' && string(100.0) == '100'",
        "bool('true') && !bool('0') && bytes('x') == b'x'",
        "type(1) == int && type('') == string && type([]) == list && type({}) == map && type(null) == null_type",
        "dyn(1) == 1 && dyn('a') != dyn(1)",
        "(true ? 1 : 2) == 1",
        "[1, 2, 3].exists(x, x == 2) && [1, 2, 3].all(x, x > 0) && [1, 2, 3].exists_one(x, x > 2)",
        "[1, 2, 3].map(x, x * 2) == [2, 4, 6] && [1, 2, 3].filter(x, x > 1) == [2, 3] && [1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
        "{'a': 1, 'b': 2}.all(k, k in ['a', 'b']) && {'a': 1}.exists(k, k == 'a')",
        "[[1, 2], [3]].map(x, x.map(y, y + 1)) == [[2, 3], [4]]",
        "[1, 2].all(x, [x].all(x, x < 3))",
        "cel.bind(x, self.n + 1, x * x) == 16",
        "object == object && object.list == ['b', 'a'] && object.map == {'a': 1, 'b': 2}",
        "dyn(null) == null && self.any != null",
    ]);
}

/// The outermost numbers of each kind, and what lies beyond them.
#[test]
fn conversions_at_the_bounds() {
    all_true(&[
        "int(9223372036854774784.0) == 9223372036854774784 && int(-9223372036854774784.0) == -9223372036854774784",
        "uint(18446744073709549568.0) == 18446744073709549568u && uint('5') == 5u && int('+5') == 5",
    ]);
    for (expression, why) in [
        ("int(9223372036854775808.0)", "integer overflow"),
        ("int(-9223372036854775808.0)", "integer overflow"),
        ("uint(18446744073709551616.0)", "unsigned integer overflow"),
        ("uint(-0.5)", "unsigned integer overflow"),
        ("uint('+5')", "type conversion error from 'string' to 'uint'"),
    ] {
        assert_eq!(
            run(&format!("dyn({expression}) == ''")),
            Err(format!("program instantiation failed: {why}")),
            "{expression}"
        );
    }
}

#[test]
fn two_variables() {
    all_true(&[
        "[5, 6].all(i, v, v == i + 5) && {'a': 1}.exists(k, v, k == 'a' && v == 1)",
        "{'a': 1, 'b': 2}.existsOne(k, v, v == 2)",
        "[1, 2, 3].transformList(i, v, i * v) == [0, 2, 6]",
        "[1, 2, 3].transformList(i, v, i > 0, v) == [2, 3]",
        "{'a': 1}.transformMap(k, v, v + 1) == {'a': 2} && {'a': 1, 'b': 2}.transformMap(k, v, v > 1, v) == {'b': 2}",
        "{'a': 'x'}.transformMapEntry(k, v, {v: k}) == {'x': 'a'}",
    ]);
}

#[test]
fn optional_values() {
    all_true(&[
        "self.?missing.orValue('x') == 'x' && self.?name.orValue('x') == 'web'",
        "[?self.?missing] == [] && [?self.?name] == ['web'] && {?'a': self.?missing} == {}",
        "self.list[?0].orValue('') == 'b' && !self.list[?9].hasValue() && self.map[?'a'] == optional.of(1)",
        "optional.of(1).optMap(x, x + 1).value() == 2 && optional.of(1).optFlatMap(x, optional.none()).hasValue() == false",
        "optional.ofNonZeroValue('') == optional.none() && optional.none().or(optional.of(2)).value() == 2",
        "[optional.of(1), optional.none()].unwrapOpt() == [1] && optional.unwrap([optional.of(1)]) == [1]",
        "[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && ![].first().hasValue()",
        "object.?any.?nope.?deep.orValue(7) == 7 && has(object.?any.x)",
    ]);
}

#[test]
fn texts() {
    all_true(&[
        "'tacocat'.charAt(3) == 'o' && 'tacocat'.charAt(7) == ''",
        "'hello mellow'.indexOf('') == 0 && 'hello mellow'.indexOf('ello') == 1 && 'hello mellow'.indexOf('jello') == -1 && 'hello mellow'.indexOf('ello', 2) == 7",
        "'hello mellow'.lastIndexOf('') == 12 && 'hello mellow'.lastIndexOf('ello') == 7 && 'hello mellow'.lastIndexOf('ello', 6) == 1",
        "['hello', 'mellow'].join() == 'hellomellow' && ['hello', 'mellow'].join(' ') == 'hello mellow' && [].join('/') == ''",
        "'TacoCat'.lowerAscii() == 'tacocat' && 'TacoCÆt Xii'.lowerAscii() == 'tacocÆt xii' && 'x'.upperAscii() == 'X'",
        "'hello hello'.replace('he', 'we') == 'wello wello' && 'hello hello'.replace('he', 'we', 1) == 'wello hello' && 'hello'.replace('he', 'we', 0) == 'hello'",
        "'ab'.replace('', '_') == '_a_b_'",
        "'hello hello hello'.split(' ') == ['hello', 'hello', 'hello'] && 'a b c'.split(' ', 0) == [] && 'a b c'.split(' ', 2) == ['a', 'b c'] && 'ab'.split('') == ['a', 'b']",
        "'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco' && 'ta©o©αT'.substring(2, 6) == '©o©α'",
        "'  \\ttrim\\n    '.trim() == 'trim'",
        "strings.quote('say \"hi\"\\n') == '\"say \\\\\"hi\\\\\"\\\\n\"'",
        "'%s is %d'.format(['x', 5]) == 'x is 5' && '%.2f'.format([3.14159]) == '3.14' && '%b'.format([5]) == '101' && '%x %X %o'.format([26, 26, 8]) == '1a 1A 10'",
        "'%s %s'.format([[dyn(1), dyn('a')], {'k': true}]) == '[1, \"a\"] {\"k\":true}' && '100%%'.format([]) == '100%' && '%e'.format([1052.03]) == '1.052030×10⁰³'",
        // As Go reads patterns: digits are those of ASCII, and braces that count nothing are themselves.
        r"!'٣'.matches('^\\d$') && '3'.matches('^\\d$') && 'a{'.find('a{') == 'a{'",
        "'abc'.contains('b') && 'abc'.startsWith('a') && 'abc'.endsWith('c') && 'abc'.matches('^a.c$') && matches('abc', 'b')",
    ]);
}

#[test]
fn lists_and_sets() {
    all_true(&[
        "!self.list.isSorted() && ['a', 'b'].isSorted()",
        "[1, 2, 3].sum() == 6 && [1.5, 2.0].sum() == 3.5 && [1, 3, 2].max() == 3 && ['b', 'a'].min() == 'a'",
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(7) == -1",
        "[1, 2, 3, 4].slice(1, 3) == [2, 3] && [[1], [2, 3]].flatten() == [1, 2, 3]",
        "([0.0 / 0.0, 9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 0.0 / 0.0, 6.0, 4.0, 5.0, 19.0, 11.0, 18.0, 12.0, 17.0, 13.0, 16.0, 14.0, 15.0, 10.0, 29.0, 21.0]).sort()[20] == 29.0",
        "[1, 2, 2].distinct() == [1, 2] && [3, 1, 2].sort() == [1, 2, 3] && [1, 2].reverse() == [2, 1]",
        "lists.range(3) == [0, 1, 2] && ['bb', 'a'].sortBy(s, size(s)) == ['a', 'bb']",
        "sets.contains([1, 2, 3], [2]) && sets.equivalent([1, 1], [1]) && sets.intersects([1], [1, 2]) && !sets.contains([1], [2])",
        "self.list.exists(x, x == 'a') && self.list.sort() == ['a', 'b']",
    ]);
}

#[test]
fn times() {
    all_true(&[
        "duration('1h') > duration('30m') && timestamp('2026-01-01T00:00:00Z').getFullYear() == 2026",
        "timestamp('2026-02-03T04:05:06.789Z').getMonth() == 1 && timestamp('2026-02-03T04:05:06Z').getDate() == 3",
        "timestamp('2026-02-03T04:05:06.789Z').getDayOfMonth() == 2 && timestamp('2026-02-01T00:00:00Z').getDayOfWeek() == 0 && timestamp('2026-02-01T00:00:00Z').getDayOfYear() == 31",
        "timestamp('2026-02-03T04:05:06.789Z').getHours('+02:00') == 6 && timestamp('2026-02-03T04:05:06.789Z').getMilliseconds() == 789",
        "duration('90m').getHours() == 1 && duration('90m').getMinutes() == 90 && duration('1.5s').getMilliseconds() == 1500",
        "timestamp('2026-01-01T00:00:00Z') + duration('1h') == timestamp('2026-01-01T01:00:00Z')",
        "timestamp('2026-01-01T01:00:00Z') - timestamp('2026-01-01T00:00:00Z') == duration('1h')",
        "string(duration('90s')) == '90s' && string(timestamp('2026-01-01T00:00:00Z')) == '2026-01-01T00:00:00Z' && int(timestamp(5)) == 5",
    ]);
}

#[test]
fn kubernetes_libraries() {
    all_true(&[
        "self.name.find('[a-z]') == 'w' && self.name.find('[0-9]') == ''",
        "'a1b22'.findAll('[0-9]+') == ['1', '22'] && 'a1b22'.findAll('[0-9]+', 1) == ['1'] && self.name.find(self.name) == 'web'",
        "isURL('https://u@h.com:80/p%20q?a=1&a=2') && !isURL('a b')",
        "url('https://h.com:80/p%20q?a=1&a=2').getHost() == 'h.com:80' && url('https://h.com:80/x').getHostname() == 'h.com' && url('https://h.com:80/x').getPort() == '80'",
        "url('https://h.com/p%20q').getEscapedPath() == '/p%20q' && url('/x').getScheme() == ''",
        "url('https://h.com/?a=1&a=2&b=x%20y').getQuery() == {'a': ['1', '2'], 'b': ['x y']}",
        "quantity('1Gi').isGreaterThan(quantity('1000M')) && quantity('1k').asInteger() == 1000",
        "quantity('50k').add(quantity('20k')) == quantity('70k') && quantity('50k').sub(20000).asInteger() == 30000",
        "isQuantity('1.5') && !isQuantity('x') && sign(quantity('-1')) == -1 && !quantity('100m').isInteger()",
        "quantity('1').compareTo(quantity('2')) == -1 && quantity('1500m').asApproximateFloat() == 1.5",
        "ip('10.0.0.1').family() == 4 && ip('::1').isLoopback() && isIP('1.2.3.4') && !isIP('1.2.3') && !isIP('::ffff:1.2.3.4')",
        "ip('fe80::1').isLinkLocalUnicast() && ip('224.0.0.1').isLinkLocalMulticast() && ip('0.0.0.0').isUnspecified() && ip('1.1.1.1').isGlobalUnicast()",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsIP(ip('10.1.2.3')) && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.0/8').prefixLength() == 8 && string(cidr('10.0.0.0/8')) == '10.0.0.0/8'",
        "isCIDR('10.0.0.0/8') && cidr('10.0.0.1/8').ip() == ip('10.0.0.1') && ip.isCanonical('::1') && !ip.isCanonical('2001:DB8::ABCD')",
        "semver('1.2.3').isLessThan(semver('1.10.0')) && isSemver('1.0.0-rc.1') && !isSemver('1.0') && isSemver('v1.0', true)",
        "semver('1.2.3').major() == 1 && semver('v1.2', true).minor() == 2 && semver('1.0.0-a').compareTo(semver('1.0.0')) == -1 && semver('1.0.0+a') == semver('1.0.0+b')",
        "format.dns1123Label().validate('Not') != optional.none() && !format.named('uuid').value().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()",
        "format.dns1123LabelPrefix().validate('a-') == optional.none() && format.date().validate('2026-02-31').hasValue() && !format.datetime().validate('2026-01-31T00:00:00Z').hasValue()",
        "!format.uri().validate('http://a/b').hasValue() && format.byte().validate('?').hasValue() && !format.named('nope').hasValue() && format.labelValue().validate('-').hasValue()",
    ]);
}
