"""Exercises of notebook 06: right answers pass, and each usual mistake is named."""

from answers import check_answers


def run_stack(body, x, w):
    for weights in w:
        x = body(x, weights)
    return x


def best_segment(n, c):
    return min(range(1, n + 1), key=lambda k: n / k + c * k)


RIGHT = {
    "06.1": lambda depth, convolutions: (depth - 2) / (3 * convolutions),
    "06.2": run_stack,
    "06.3": best_segment,
    "06.4": ["a", "D"],
}

WRONG = [
    ("06.1", lambda depth, convolutions: depth / (3 * convolutions), "two layers belong to no unit"),
    ("06.1", lambda depth, convolutions: (depth - 2) / convolutions, "all three stages"),
    ("06.1", lambda depth, convolutions: 18, "for depth 1001"),
    ("06.1", lambda depth, convolutions: None, "returns nothing"),
    ("06.2", lambda body, x, w: run_stack(body, x, w[::-1]), "begins with the last"),
    ("06.2", lambda body, x, w: run_stack(body, x, [w[0]] * 5), "the first unit's weights"),
    ("06.2", lambda body, x, w: body(x, w[0]), "stops after one unit"),
    ("06.2", lambda body, x, w: run_stack(body, x, w[:-1]), "one unit too early"),
    ("06.2", lambda body, x, w: x + run_stack(body, x, w), "adds x once more"),
    ("06.2", lambda body, x, w: [body(x, each) for each in w][-1], "each unit receives x itself"),
    ("06.2", lambda body, x, w: x, "one after the other"),
    ("06.3", 11, "give a function"),
    ("06.3", lambda n, c: (n / c) ** 0.5 + 0.1, "must be a whole number"),
    ("06.3", lambda n, c: 0, "from 1 to 100"),
    ("06.3", lambda n, c: round(n**0.5), "you left out c"),
    ("06.3", lambda n, c: 11 if (n, c) == (110, 1) else best_segment(n, c), "10 is as good and smaller"),
    ("06.3", lambda n, c: 1, "the sum is 101.0; it can be 20.0"),
    ("06.3", lambda n, c: max(1, round((n / c) ** 0.5)), "the sum is 16.0; it can be 15.5"),
    ("06.3", lambda n, c: max(1, int((n / c) ** 0.5)), "the sum is 16.0; it can be 15.5"),
    ("06.3", lambda n, c: None, "returns nothing"),
    ("06.4", "AD", "give a list"),
    ("06.4", [1, 2], "give a list of letters"),
    ("06.4", ["A", "G"], "'G' is not a claim"),
    ("06.4", ["A", "B"], "look at the training loss"),
    ("06.4", ["A", "C", "D"], "still guesses"),
    ("06.4", ["A", "D", "E"], "1,560 steps"),
    ("06.4", ["A", "D", "F"], "both gradients explode"),
    ("06.4", ["A"], "D is missing"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)
