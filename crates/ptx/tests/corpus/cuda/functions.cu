struct Pair { int a; double b; char c[5]; };
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ __noinline__ Pair make(int a, Pair p) { p.a += a; p.b *= 2; p.c[a & 3] = 7; return p; }
typedef int (*Op)(int, int);
__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ int mul(int a, int b) { return a * b; }
__device__ __noinline__ int sub(int a, int b) { return a - b; }
__device__ Op table[3] = {add, mul, sub};
struct Shape { __device__ virtual float area() const = 0; __device__ virtual ~Shape() {} };
struct Square : Shape { float s; __device__ Square(float s) : s(s) {} __device__ float area() const override { return s * s; } };
struct Disc : Shape { float r; __device__ Disc(float r) : r(r) {} __device__ float area() const override { return 3.14f * r * r; } };
extern "C" __global__ void calls(int *out, int which, Pair p) {
    Pair q = make(which, p);
    out[0] = fibonacci(which) + q.a + (int)q.b + q.c[which & 3];
    out[1] = table[which](3, 4);
    Square square(2); Disc disc(3);
    const Shape *shape = which ? (const Shape *)&square : &disc;
    out[2] = (int)shape->area();
}
