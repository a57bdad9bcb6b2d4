// The kernels for one kind of processor: this file is compiled once for each, with FUGU_TARGET as
// its name. Everything here has internal linkage or stands in a namespace of that name; nothing of
// the standard library that is a template may be used, lest the linker keep one processor's code
// for all.
#include "nets/cells.hpp"
#include "nets/elementwise.hpp"
#include "nets/images.hpp"
#include "nets/kernels.hpp"
#include "nets/product.hpp"
#include "nets/rows.hpp"

#define FUGU_TEXT_OF(name) #name
#define FUGU_TEXT(name) FUGU_TEXT_OF(name)
#define FUGU_JOIN_OF(a, b) a##b
#define FUGU_JOIN(a, b) FUGU_JOIN_OF(a, b)

namespace fugu::nets {

const Kernels& FUGU_JOIN(kernels_, FUGU_TARGET)() {
    using namespace FUGU_TARGET;
    static const Kernels kernels{FUGU_TEXT(FUGU_TARGET),
                                 kLanes,
#if defined(__AVX512BF16__)
                                 true,
#else
                                 false,
#endif
                                 product,
                                 outer,
                                 pair_rows,
                                 pair_columns,
                                 convolve,
                                 pool,
                                 apply,
                                 apply_keeping,
                                 combine,
                                 add_product,
                                 add_rows,
                                 blend,
                                 scale,
                                 normalise,
                                 normalise_back,
                                 reduce,
                                 lstm_forth,
                                 lstm_back,
                                 attend,
                                 convert};
    return kernels;
}

} // namespace fugu::nets
