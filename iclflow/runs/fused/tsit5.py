"""The solver of a fused flow: the pair of Tsitouras, and the control of its steps, as text.

The numbers are those of C. Tsitouras, "Runge-Kutta pairs of order 5(4) satisfying only the first
column simplifying assumption", Computers & Mathematics with Applications 62 (2011) 770-775, Table 1
and the dense output of its Section 4. They are the numbers that Diffrax's `Tsit5` has, and a test
compares the two.
"""

# Stage i is the slope at y + h Σ_j A[i][j] k_j. The last stage is at the end of the step, so that
# it is the first one of the next step.
A = [
    [],
    [0.161],
    [-0.008480655492356989, 0.335480655492357],
    [2.8971530571054935, -6.359448489975075, 4.3622954328695815],
    [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525],
    [
        5.86145544294642,
        -12.92096931784711,
        8.159367898576159,
        -0.071584973281401,
        -0.028269050394068383,
    ],
    [
        0.09646076681806523,
        0.01,
        0.4798896504144996,
        1.379008574103742,
        -3.290069515436081,
        2.324710524099774,
    ],
]
# The error of a step, estimated: h Σ_j ERROR[j] k_j.
ERROR = [
    0.0017800110522257773,
    0.0008164344596567463,
    -0.007880878010261994,
    0.1447110071732629,
    -0.5823571654525552,
    0.45808210592918686,
    -1 / 66,
]
# y(t + θh) = y + h Σ_j b_j(θ) k_j, with b_1 = θ times a cubic and the others θ² times a quadratic:
# (leading coefficient, then the coefficients of the rest by rising powers).
DENSE = [
    (-1.0530884977290216, (-0.9495878097201644, 2.6243817145802466, -2.7663918731467763, 1.0)),
    (0.1017, (1.2949852507374631, -2.1966568338249754, 1.0)),
    (2.4906272856512528, (1.5780346820809249, -2.3853564547206166, 1.0)),
    (-16.548102889244903, (0.75, -1.8333333333333333, 1.0)),
    (47.37952196281928, (0.791677751538865, -1.86111850102591, 1.0)),
    (-34.87065786149661, (0.8, -1.8666666666666667, 1.0)),
    (2.5, (0.6, -1.6, 1.0)),
]

# The next step is SAFETY · ε^(-0.7/p) · ε'^(0.4/p) times as long, with the error ε of this step
# and ε' of the last one that was kept, both in units of the tolerance, and the order p. This is
# proportional and integral control (G. Söderlind, "Digital filters in adaptive time-stepping", ACM
# Transactions on Mathematical Software 29 (2003) 1-26). On a plateau stability bounds the length of
# an explicit step. There the purely integral control that Diffrax has by default rejects every
# fourth step, and this one every fifteenth (D = 4, tolerance 1e-6). A step that was kept may be
# followed by a shorter one. Diffrax shortens a step only after it was rejected.
SAFETY, LARGEST, SMALLEST = 0.9, 10.0, 0.2
INTEGRAL, PROPORTIONAL = 0.3, 0.4
ORDER = 5
REACH = 3.5  # of the stable interval


def control(order: int) -> str:
    """The control of the steps of a pair of this order and the one below, as text.

    Both engines have `bits_of` and `real_of` of their own. The logarithm of the square of an error
    has eight digits; the power of two takes numbers between -8 and 8.
    """
    return f"""
FUNCTION double logarithm(double square) {{
    const double x = square < 1e20 ? (square > 1e-20 ? square : 1e-20) : 1e20;
    const whole bits = bits_of(x) - 0x3fe6a09e667f3bcdLL;
    const whole exponent = bits >> 52;
    const double m = real_of((bits & 0xfffffffffffffLL) + 0x3fe6a09e667f3bcdLL);
    const double s = (m - 1) / (m + 1), s2 = s * s;
    return double(exponent) + 2.8853900817779268 * s
        * (1 + s2 * (1.0 / 3 + s2 * (1.0 / 5 + s2 * (1.0 / 7))));
}}
FUNCTION double power_of_two(double x) {{
    const whole n = whole(x + 8.5) - 8;
    const double r = (x - double(n)) * 0.6931471805599453;
    const double p = 1 + r * (1 + r * (1.0 / 2 + r * (1.0 / 6 + r * (1.0 / 24
        + r * (1.0 / 120 + r * (1.0 / 720))))));
    return p * real_of((n + 1023) << 52);
}}
FUNCTION double next_factor(double logarithm, double last, bool keep) {{
    const double wanted = {SAFETY} * power_of_two(
        {PROPORTIONAL / order / 2!r} * last
        - {(INTEGRAL + PROPORTIONAL) / order / 2!r} * logarithm);
    const double low = {SMALLEST}, high = keep ? {LARGEST} : {SAFETY};
    return wanted < low ? low : wanted > high ? high : wanted;
}}
FUNCTION double first_size(double slope, double change, double trial) {{
    const double most = slope > change ? slope : change;
    const double found = most <= 1e-15 ? (trial * 1e-3 > 1e-6 ? trial * 1e-3 : 1e-6)
        : pow(0.01 / most, {1 / order});
    return found < 100 * trial ? found : 100 * trial;
}}
"""
