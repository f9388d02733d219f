"""The kernels in C++, and what compiles them (`build`)."""
